-- listing.lua  KEYS: the shard  ARGV: kind, prefix, first name, limit  →  resources in order of name

local before = 'r' .. SEP .. ARGV[1] .. SEP
local limit = tonumber(ARGV[4])
-- No name contains the byte 255, so this is after all names that begin with the prefix.
local found = scan(before .. ARGV[3], before .. ARGV[2] .. '\255', limit + 1)
local views = {}
for i = 1, min(#found, limit) do
  local name = sub(found[i], #before + 1)
  -- Otherwise the resource is not in use: a step that the server aborted left the index entry.
  if not get_resource(ARGV[1], name).fresh then
    views[#views + 1] = resource_view(ARGV[1], name, 16)
  end
end
return answer({ 'L', views, #found > limit and 1 or 0 })
