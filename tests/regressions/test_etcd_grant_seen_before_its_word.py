"""A claim that another process granted is reported, also if our own step saw the grant first.

A step for one claim reads the whole head of the queue, and notes what it finds of our other
claims. The word of a claim noted as held was then taken for old, so its caller waited for the
next keep-alive. Found with forked workers that each had several tasks in one queue.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

LISTENS = 50
PLACE = c.Place("lock", "orders/42", "exclusive")


def test_its_caller_is_told() -> None:
    with EtcdCluster(1) as node:
        holder, waiter = (EtcdStore(address_of(node.url("words"))) for _ in range(2))
        told: list[c.Wake] = []
        listener = waiter.wake_listener("waiter", told.append)
        first, second = holder.caller_wire(), waiter.caller_wire()
        run(first.send(c.Open("holder", 60_000, "h"), 5000))
        run(second.send(c.Open("waiter", 60_000, "w", inbox=listener.inbox), 5000))
        run(listener.listen(0))
        assert isinstance(run(first.send(c.Enter("holder", 1, (PLACE,)), 5000)), c.Granted)
        for n in (1, 2):
            assert isinstance(run(second.send(c.Enter("waiter", n, (PLACE,)), 5000)), c.Queued)
        run(first.send(c.Leave("holder", 1), 5000))
        assert isinstance(run(second.send(c.Look("waiter", 2), 5000)), c.Queued)
        assert (
            waiter.context.own.begin("waiter").claims[1].claim.token
        )  # the look has seen the grant

        for _ in range(LISTENS):
            if not told:
                run(listener.listen(100))
        assert [(wake.n, wake.what) for wake in told] == [(1, c.WAKE_GRANTED)]
        for each in (listener, holder, waiter):
            each.close()
