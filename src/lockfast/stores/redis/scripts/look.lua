-- look.lua  KEYS: the shard  ARGV: clock, session, n  →  granted, queued, gone or ended

local ended = over(ARGV[2])
if ended then
  return answer(ended)
end
local claim = get_claim(ARGV[2] .. SEP .. ARGV[3])
return answer(claim and view(claim) or { 'X', 'it is not in the queue', '' })
