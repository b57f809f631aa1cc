-- adopt.lua  KEYS: the shard  ARGV: session, n, actor  →  done, gone or ended

return step(function()
  local _, over = live(ARGV[1])
  if over then
    return over
  end
  local claim = get_claim(ARGV[1] .. SEP .. ARGV[2])
  if not claim then
    return { 'X', $NOT_HELD, '' }
  elseif claim.state ~= HOLDING then
    return view(claim)
  end
  claim.actor = ARGV[3]
  put_claim(claim)
  return { 'D', 1 }
end)
