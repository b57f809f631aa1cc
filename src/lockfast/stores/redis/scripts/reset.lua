-- reset.lua  KEYS: the shard  →  how many sessions were ended
--
-- Wakes every session whose row can be read, and deletes everything except the counters. The last token is preserved
-- if it can be read; otherwise tokens continue from the clock, as after FLUSHALL.

local ROWS, ORDER, DUE, LOG = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local call, sub = redis.call, string.sub
local now_ms, wall_us
$READ_CLOCK
local token, position, ended = wall_us, 0, 0
local rows = call('TYPE', ROWS).ok == 'hash' and call('HGETALL', ROWS) or {}
for i = 1, #rows, 2 do
  local key, row = rows[i], rows[i + 1]
  if key == 'm' and #row >= $COUNTERS_BYTES then
    local last, at = struct.unpack('<dd', row)
    token, position = math.max(token, last), at
  elseif sub(key, 1, 2) == 'i\031' then
    local readable, _, _, _, inbox = pcall(struct.unpack, '<ddI4c0I4c0', row)
    ended = ended + 1
    if readable and inbox ~= '' then
      local session = sub(key, 3)
      local said = session .. ' 0 ended 0'
      call('PUBLISH', sub(ROWS, 1, -5) .. 'wake:' .. session, said .. ' ' .. $WAKE_CODE)
    end
  end
end
call('DEL', ROWS, ORDER, DUE, LOG)
call('HSET', ROWS, 'm', struct.pack('<dddBB', token, position, 2 ^ 52, $SCHEMA, $SHARDS))
return { ended }
