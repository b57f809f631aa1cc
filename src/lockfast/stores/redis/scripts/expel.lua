-- expel.lua  KEYS: the shard  ARGV: clock, session, reason, renewals or nothing  →  done

write_in_any_case()

return step(function()
  local session = get_session(ARGV[2])
  if session and ARGV[4] ~= '' and session.renewals ~= tonumber(ARGV[4]) then
    return { 'D', 0 }
  end
  return finish_by_command(ARGV[2], ARGV[3], 'expired')
end)
