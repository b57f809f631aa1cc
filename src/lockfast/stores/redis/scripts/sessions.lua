-- sessions.lua  KEYS: the shard  ARGV: first session, limit  →  sessions in order of id

local limit = tonumber(ARGV[2])
local found = scan('s' .. SEP .. ARGV[1], 's ', limit + 1)
local views = {}
for i = 1, min(#found, limit) do
  local id = sub(found[i], 3)
  local session = get_session(id)
  if session then
    local left_ms = max(0, session.deadline_ms - now_ms)
    local ended = session.ended
    if ended ~= '' then
      left_ms = 0
    elseif left_ms == 0 then
      ended = EXPIRED
    end
    views[#views + 1] = {
      id, session.owner, call('HGET', ROWS, 't' .. SEP .. id) or '', session.process, session.ttl_ms,
      left_ms, session.claims, session.renewals, ended, session.by,
    }
  end
end
return answer({ 'S', views, #found > limit and 1 or 0 })
