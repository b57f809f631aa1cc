"""The procedures behind the API, as `async def` over the ports. They import no concurrency library.

How a claim, session or keeper ends, and the method that this package uses for it:

| method | ends | cause | consequence |
|---|---|---|---|
| `forget` | a claim | the store has removed it, or certainly never had it | nothing is sent |
| `abandon` | a claim | its caller gave up | the keeper sends `Leave` until the store replies |
| `drop` | a claim | a finalizer ran, which must not lock a mutex | the keeper abandons it |
| `over` | a claim | the store revoked it, or has no record of it | its lease is lost |
| `outlive` | a claim | its `max_hold` has elapsed | as `over`, and `Leave` after the margin |
| `end` | a session | its deadline passed, or its client was closed | all its leases are lost |
| `end_as_told` | a session | the store reported that it ended | as `end`; nothing is sent |
| `end_session` | a session | a client, waiter or operator ends it | the store removes its claims |
| `work_has_stopped` | a lost lease | its holder has stopped working | its successor may enter |
| `stopped` | a keeper | its session has ended | its thread exits |
"""
