-- proclaim.lua  KEYS: the shard  ARGV: session, n, value  →  done, refused, gone or ended

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
  elseif #ARGV[3] > TEXT_MAX then
    return { 'R', 'too large', 'value', #ARGV[3], TEXT_MAX }
  end
  claim.value = ARGV[3]
  put_claim(claim)
  for _, place in ipairs(claim.places) do
    log('proclaimed', place, claim, ARGV[3])
  end
  return { 'D', 1 }
end)
