-- layout.lua  (behind shard.lua)  KEYS: a shard, or the namespace itself  ARGV: record or look  →  1, or 0 if none is recorded
--
-- A namespace that is spread over shards has no sessions of its own; its counters record the layout, so that clients
-- without shards and clients with another layout are refused by shard.lua.

if not counters and ARGV[1] == 'record' then
  call('HSET', ROWS, 'm', packed_counters())
  return 1
end
return counters and 1 or 0
