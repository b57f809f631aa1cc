-- adopt.lua  KEYS: the shard  ARGV: clock, session, n, actor  →  done, gone or ended

return step(function()
  local _, over = live(ARGV[2])
  if over then
    return over
  end
  local claim = get_claim(ARGV[2] .. SEP .. ARGV[3])
  if not claim then
    return { 'X', 'it is not held', '' }
  elseif claim.state ~= HOLDING then
    return view(claim)
  end
  claim.actor = ARGV[4]
  put_claim(claim)
  return { 'D', 1 }
end)
