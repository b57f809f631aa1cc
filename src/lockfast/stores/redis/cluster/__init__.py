"""Redis Cluster: one namespace spread over shards, each the Lua store in a separate slot.

`stores/sharded/` routes commands to shards. Here, a shard is a hash tag, so all its keys are in
one slot and each of its scripts runs on one node. The tags are chosen so that shards spread
evenly over the slots, and with them over the nodes (`slots.py`).

- **Topology.** `CLUSTER SLOTS` names the primary of each slot. A client asks for it at the
  start and after a failure; in between, redirections correct it (`topology.py`).
- **Redirections** are replies to commands that were not executed. `MOVED`: the slot has another
  primary from now on. `ASK`: only this command goes to the node that is taking over the slot.
  `TRYAGAIN`: the keys of the slot are on two nodes; retry shortly. A script declares
  all keys of its shard, so it never runs while some of them are elsewhere (`wire.py`).
- **Failover.** While a primary is down its shards are unavailable, and requests are retried.
  What the promoted replica has not received is lost, as after a failover of a single server:
  the session's checksum reveals it, and the holder is notified at its next keep-alive.
- **Wakes.** A message published on one node of a cluster reaches subscribers on every node, so
  a client needs one subscription for all its sessions (`subscription.py`).
- **Layout.** The number of shards and their placement are stored in the counters of every shard
  and of the namespace itself. A client that disagrees gets StoreMisconfiguredError.
"""
