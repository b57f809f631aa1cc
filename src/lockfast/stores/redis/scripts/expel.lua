-- expel.lua  KEYS: the shard  ARGV: session, reason, renewals or nothing  →  done

write_in_any_case()

return step(function()
  local session = get_session(ARGV[1])
  if session and session.ended == '' and ARGV[3] ~= '' and session.renewals ~= tonumber(ARGV[3]) then
    return { 'D', 0, 0 }
  end
  return end_by_command(ARGV[1], ARGV[2], 'expired')
end)
