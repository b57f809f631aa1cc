"""The procedures behind the API, as `async def` over the ports. They import no concurrency library.

How a claim or session ends, and the word for it in this package:

| word | of | who says so | what follows |
|---|---|---|---|
| `forget` | a claim | the store has let go of it, or surely never had it | nothing is sent |
| `abandon` | a claim | its caller gave up | the keeper sends `Leave` until answered |
| `drop` | a claim | a finalizer, which must not take a mutex | the keeper abandons it |
| `over` | a claim | the store took it away, or has no record of it | its lease is lost |
| `outlive` | a claim | its `max_hold` has passed | as `over`, and `Leave` after the margin |
| `end` | a session | its deadline passed, or its client closes it | all its leases are lost |
| `end_as_told` | a session | the store says that it has ended | as `end`; nothing is sent |
| `end_session` | a session | a closer, waiter or admin | the store removes its claims |
| `work_has_stopped` | a lost lease | nobody works under it any more | its successor may enter |
| `stopped` | a keeper | it has nothing more to do | its thread ends |
"""
