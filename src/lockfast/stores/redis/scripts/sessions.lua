-- sessions.lua  KEYS: the shard  ARGV: first session, limit  →  sessions in order of id

local views, more = page('s' .. SEP .. ARGV[1], 's ', tonumber(ARGV[2]), function(member)
  local id = sub(member, 3)
  local session = get_session(id)
  if not session then
    return nil
  end
  local left_ms = max(0, session.deadline_ms - now_ms)
  local ended = session.ended
  if ended ~= '' then
    left_ms = 0
  elseif left_ms == 0 then
    ended = EXPIRED
  end
  return {
    id, session.owner, call('HGET', ROWS, 't' .. SEP .. id) or '', session.process, session.ttl_ms,
    left_ms, session.claims, session.renewals, ended, session.by,
  }
end)
return answer({ 'S', views, more })
