-- revoke.lua  KEYS: the shard  ARGV: session, n, by, reason  →  done

write_in_any_case()

return step(function()
  local claim = get_claim(ARGV[1] .. SEP .. ARGV[2])
  if not claim or claim.state == REVOKED then
    return { 'D', 0 }
  end
  settle(revoke_claim(claim, 'revoked', $REVOKED_TEXT .. ARGV[4], ARGV[3]))
  return { 'D', 1 }
end)
