-- watch.lua  KEYS: the shard  ARGV: session, on  →  done or ended

return step(function()
  local session, over = live(ARGV[1])
  if over then
    return over
  end
  if session.watching ~= (ARGV[2] == '1') then
    set_watching(session, ARGV[2] == '1')
    put_session(session)
  end
  return { 'D', 1 }
end)
