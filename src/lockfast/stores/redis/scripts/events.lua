-- events.lua  KEYS: the shard  ARGV: clock, after or nothing, limit  →  the log after a position

local oldest = position - call('LLEN', LOG) + 1
if ARGV[2] == '' then
  return answer({ 'T', {}, position, oldest, 0 })
end
local after, limit = max(tonumber(ARGV[2]), oldest - 1), tonumber(ARGV[3])
local events = {}
for i, raw in ipairs(call('LRANGE', LOG, after + 1 - oldest, after + limit - oldest)) do
  local wall_ms, n, of_token, at = unpack_from('<ddd', raw)
  local what, kind, name, mode, session, owner, detail =
    string.match(sub(raw, at), '^([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031(.*)$')
  events[i] = { after + i, wall_ms, what, kind, name, mode, session, n, owner, of_token, detail }
end
return answer({ 'T', events, position, oldest, position > after + limit and 1 or 0 })
