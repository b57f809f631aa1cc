-- inspect.lua  KEYS: the shard  ARGV: kind, name, waiting_max  →  one resource

return answer(resource_view(ARGV[1], ARGV[2], tonumber(ARGV[3])))
