-- proclaim.lua  KEYS: the shard  ARGV: session, n, value  →  done, refused, gone or ended

return step(function()
  local claim, over = held_claim(ARGV[1], ARGV[2])
  if not claim then
    return over
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
