-- revoke.lua  KEYS: the shard  ARGV: clock, session, n, by, reason  →  done

write_in_any_case()

return step(function()
  local claim = get_claim(ARGV[2] .. SEP .. ARGV[3])
  if not claim or claim.state == REVOKED then
    return { 'D', 0 }
  end
  settle(take_away(claim, 'revoked', 'it was revoked: ' .. ARGV[5], ARGV[4]))
  return { 'D', 1 }
end)
