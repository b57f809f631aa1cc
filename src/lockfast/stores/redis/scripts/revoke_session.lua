-- revoke_session.lua  KEYS: the shard  ARGV: session, by, reason  →  done

write_in_any_case()

return step(function()
  return finish_by_command(ARGV[1], 'it was revoked: ' .. ARGV[3], 'revoked', ARGV[2])
end)
