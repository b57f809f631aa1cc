-- adopt.lua  KEYS: the shard  ARGV: session, n, actor  →  done, gone or ended

return step(function()
  local claim, over = held_claim(ARGV[1], ARGV[2])
  if not claim then
    return over
  end
  claim.actor = ARGV[3]
  put_claim(claim)
  return { 'D', 1 }
end)
