-- leave.lua  KEYS: the shard  ARGV: session, n, name of a plain lock, else nothing and close_ms  →  done, gone or ended

write_in_any_case()

return step(function()
  local session, over = live(ARGV[1])
  if over then
    return over
  end
  local claim = get_claim(ARGV[1] .. SEP .. ARGV[2])
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
