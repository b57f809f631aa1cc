-- claims.lua  KEYS: the shard  ARGV: session  →  the claims of a session, or ended

local ended = over(ARGV[1])
if ended then
  return answer(ended)
end
local claims = claims_of(get_session(ARGV[1]), 0)
return answer({ 'C', views_of(claims, #claims) })
