-- revoke_session.lua  KEYS: the shard  ARGV: clock, session, by, reason  →  done

write_in_any_case()

return step(function()
  return finish_by_command(ARGV[2], 'it was revoked: ' .. ARGV[4], 'revoked', ARGV[3])
end)
