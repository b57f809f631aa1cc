"""A dead holder is noticed at once, also if the first claim of the waiting session has given up.

The listener of a session settled a queue again for the claim that was its first there when the
watch was opened. If that claim had left since, the next one of the same session waited for a
keep-alive, a third of the TTL.
"""

from __future__ import annotations

from lockfast.core import commands as c
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer

LISTENS = 4


def test_the_next_claim_of_the_session_is_granted() -> None:
    server = ModelServer()
    holder, waiter = Client(server, "s0"), Client(server, "s1")
    assert isinstance(holder.enter(1), c.Granted)
    for n in (1, 2):
        queued = waiter.enter(n)
        assert isinstance(queued, c.Queued)
        waiter.listener.watch_over(n, queued.ahead)
    server.now_us += 1_000_000
    waiter.listen()
    waiter.leave(1)
    waiter.listener.watch_over(1, ())
    waiter.listen()
    own = holder.store.context.own.get("s0")
    assert own is not None
    assert own.record is not None
    server.call("/v3/lease/revoke", {"ID": str(own.record.lease)})
    for _ in range(LISTENS):
        waiter.listen()
    assert waiter.granted == [2]
