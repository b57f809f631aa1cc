-- events.lua  KEYS: the shard  ARGV: after or nothing, limit  →  the log after a position
--
-- Reading enables the log: events are written from now on, but earlier ones may be missing.

if log_until_ms < now_ms + LOG_KEPT_MS / 2 then
  write_in_any_case()
  keep_log()
  call('HSET', ROWS, 'm', packed_counters())
end
local oldest = position - call('LLEN', LOG) + 1
if ARGV[1] == '' then
  return answer({ 'T', {}, position, oldest, 0 })
end
local after, limit = max(tonumber(ARGV[1]), oldest - 1), tonumber(ARGV[2])
local events = {}
for i, raw in ipairs(call('LRANGE', LOG, after + 1 - oldest, after + limit - oldest)) do
  local wall_ms, n, of_token, at = unpack_from('<ddd', raw)
  local what, kind, name, mode, session, owner, detail =
    string.match(sub(raw, at), '^([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031([^\031]*)\031(.*)$')
  events[i] = { after + i, wall_ms, what, kind, name, mode, session, n, owner, of_token, detail }
end
return answer({ 'T', events, position, oldest, position > after + limit and 1 or 0 })
