-- listing.lua  KEYS: the shard  ARGV: kind, prefix, first name, limit  →  resources in order of name

local before = 'r' .. SEP .. ARGV[1] .. SEP
-- No name contains the byte 255, so this is after all names that begin with the prefix.
local last = before .. ARGV[2] .. '\255'
local views, more = page(before .. ARGV[3], last, tonumber(ARGV[4]), function(member)
  local name = sub(member, #before + 1)
  if not get_resource(ARGV[1], name).fresh then
    return resource_view(ARGV[1], name, 16)
  end
end)
return answer({ 'L', views, more })
