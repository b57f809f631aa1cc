"""A store of several shards, each of which is a complete lock table.

`core/placement.py` says which shard a name and a session belong to. `ShardedWire` sends each
command to the shard it belongs to and merges what is read from all of them; it keeps no state.
It works over any list of stores: the nodes of a Redis Cluster (`stores/redis/cluster/`), or
tables in memory (`sharded+memory://name?shards=4`), which tests and the simulator use.

- **One step, one shard.** A claim is in one shard, and so is its session. A client has one
  session, keep-alive and deadline per shard, so a shard that fails costs the leases there and
  no others.
- **Tokens** increase within a shard. They are compared per resource, and a resource never moves to
  another shard.
- **Deadlocks** across shards are found by reading all shards. `Break` is atomic within the shard
  of its victim; the claims elsewhere are read just before it. A deadlock does not resolve on
  its own, so the worst case is a DeadlockError for a claim that was about to time out anyway.
- **The log.** Each shard has its own. A position in the merged log is one integer that contains
  the position in every shard (`positions.py`). Events of one shard keep their order; events of
  different shards are ordered by the clocks of their servers.
"""
