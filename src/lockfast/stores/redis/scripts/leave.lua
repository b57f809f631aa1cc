-- leave.lua  KEYS: the shard  ARGV: session, n, nothing, close_ms  →  done, gone or ended
--
-- For a plain lock ARGV has the row keys themselves: s␟session, n, r␟lock␟name, c␟session␟n.

write_in_any_case()

return step(function()
  local id = ARGV[3] == '' and ARGV[1] or sub(ARGV[1], 3)
  local session, over = live(id)
  if over then
    return over
  end
  local claim = get_claim(id .. SEP .. ARGV[2])
  if not claim then
    see(session, tonumber(ARGV[2]))
    put_session(session)
    return { 'D', 0 }
  elseif claim.state == REVOKED then
    delete_claim(claim)
    return { 'X', claim.reason, claim.by }
  end
  remove(claim, claim.state == HOLDING and 'released' or 'gave_up')
  if ARGV[3] == '' and ARGV[4] ~= '0' then
    for _, place in ipairs(claim.places) do
      close_for(place, tonumber(ARGV[4]))
    end
  end
  settle(claim.places)
  return { 'D', 1 }
end)
