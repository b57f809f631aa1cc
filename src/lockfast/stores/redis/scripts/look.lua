-- look.lua  KEYS: the shard  ARGV: session, n  →  granted, queued, gone or ended

local ended = over(ARGV[1])
if ended then
  return answer(ended)
end
local claim = get_claim(ARGV[1] .. SEP .. ARGV[2])
return answer(claim and view(claim) or { 'X', $NOT_QUEUED, '' })
