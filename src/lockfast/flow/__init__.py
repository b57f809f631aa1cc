"""The procedures behind the API, as `async def` over the ports. They import no concurrency library.

This table defines the verbs for how a claim, a lease or a session ends. Use no others: a test
rejects synonyms as names of methods. A participle (`released`, `lost`) names a method that
records what the store replied; an imperative (`release_later`, `expire`) is a decision of this
client.

| verb | what ends | by whom, why | consequence |
|---|---|---|---|
| release | a lease or claim | its caller no longer needs it | the store grants the next claim |
| give up | a waiting claim | its caller timed out or is cancelled; a deadlock | leaves the queue |
| expire | a session; a claim with `max_hold` | its time elapsed | its leases are lost |
| revoke | a claim or session | an operator, with a reason | its leases are lost |
| expel | a session | another client: its process or keep-alives stopped | its leases are lost |
| close | a session | its own client | the store releases its claims |
| lose | a lease; a place in a queue | expire, revoke, expel, close | a waiting claim enters again |
| end | any of them | any of the above | `on_end` callbacks run |
| stop | a keeper; a holder's work | session ended; lease was lost | its successor may enter |

A release that cannot wait for the store goes to the session's outbox: `release_later` queues it
for the keeper, `release_from_finalizer` does so without a mutex.
"""
