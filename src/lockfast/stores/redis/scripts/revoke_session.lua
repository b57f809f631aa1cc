-- revoke_session.lua  KEYS: the shard  ARGV: session, by, reason  →  done

write_in_any_case()

return step(function()
  return end_by_command(ARGV[1], $REVOKED_TEXT .. ARGV[3], 'revoked', ARGV[2])
end)
