-- renew.lua  KEYS: the shard  ARGV: session, count, checksum, lowest, waiting n…  →  renewed or ended

write_in_any_case()

return step(function()
  local session, over = live(ARGV[1])
  if over then
    return over
  end
  if now_ms + session.ttl_ms < session.deadline_ms then
    -- The clock was set back. Otherwise the entry in `due` keeps its old time: when it comes due,
    -- reap sees that the session was renewed and moves the entry.
    set_due(now_ms + session.ttl_ms, session.id)
  end
  session.deadline_ms = now_ms + session.ttl_ms
  session.renewals = session.renewals + 1
  forget_below(session, tonumber(ARGV[4]))
  put_session(session)
  local matches = tonumber(ARGV[2]) == session.claims and tonumber(ARGV[3]) == session.checksum
  local looks = {}
  for i = 5, #ARGV do
    local n = tonumber(ARGV[i])
    local claim = get_claim(session.id .. SEP .. ARGV[i])
    if claim then
      settle(claim.places)
      looks[#looks + 1] = { n, view(claim) }
    else
      looks[#looks + 1] = { n, { 'X', $NOT_QUEUED, '' } }
    end
  end
  return { 'N', matches and 1 or 0, looks }
end)
