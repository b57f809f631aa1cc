-- redis.lua  KEYS: floors, …  ARGV: token, once, number compared, number raised, marks…, …  →  { 1, result } or { 0, floor }
--
-- Checks the token and raises the floors, then runs the caller's script with the KEYS and ARGV that follow ours.
-- Tokens have at most 53 bits, so Lua numbers represent them exactly.

local token, once = tonumber(ARGV[1]), ARGV[2] == '1'
local compared, raised = tonumber(ARGV[3]), tonumber(ARGV[4])

local floor, floor_text = 0, '0'
for i = 5, 4 + compared do
  local found = redis.call('HGET', KEYS[1], ARGV[i])
  if found and tonumber(found) > floor then
    floor, floor_text = tonumber(found), found
  end
end
if token < floor or (once and token == floor) then
  return { 0, floor_text }
end
for i = 5 + compared, 4 + compared + raised do
  local found = redis.call('HGET', KEYS[1], ARGV[i])
  if not found or tonumber(found) < token then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[1])
  end
end

local function guarded(KEYS, ARGV)
  --[[ the caller's script ]]
end

local keys, arguments = {}, {}
for i = 2, #KEYS do
  keys[#keys + 1] = KEYS[i]
end
for i = 5 + compared + raised, #ARGV do
  arguments[#arguments + 1] = ARGV[i]
end
return { 1, guarded(keys, arguments) }
