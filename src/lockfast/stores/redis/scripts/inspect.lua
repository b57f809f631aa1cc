-- inspect.lua  KEYS: the shard  ARGV: clock, kind, name, waiting_max  →  one resource

return answer(resource_view(ARGV[2], ARGV[3], tonumber(ARGV[4])))
