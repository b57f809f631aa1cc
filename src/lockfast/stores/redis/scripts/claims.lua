-- claims.lua  KEYS: the shard  ARGV: clock, session  →  the claims of a session, or ended

local ended = over(ARGV[2])
if ended then
  return answer(ended)
end
local claims = claims_of(ARGV[2])
return answer({ 'C', views_of(claims, #claims) })
