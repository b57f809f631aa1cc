"""A claim that is granted, converted or moved while its session's claims are listed is in the list.

A keep-alive that does not match lists the keys of the session's lease, and then reads them. A claim
that was granted in between has another key: it was missing from the reply, so its client took it
for lost and entered again, behind everybody else. Found as a queue served out of order. A claim
that a broken deadlock moved ahead of a reservation has another rank as well.
"""

from __future__ import annotations

from functools import partial

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.execution import Execution
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

PLACE, OTHER = (c.Place("lock", name, "exclusive") for name in ("orders/42", "orders/41"))


@pytest.mark.parametrize("change", ["granted", "converted", "moved"])
def test_it_is_in_the_list(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    with EtcdCluster(1) as node:
        reply = _list_during(node, monkeypatch, change)
    assert isinstance(reply, c.ClaimsReply)
    assert [(claim.n, claim.state) for claim in reply.claims] == [(1, c.HOLDING)]


def _list_during(node: EtcdCluster, monkeypatch: pytest.MonkeyPatch, change: str) -> c.Reply:
    """Return the claims of a session, one of which changes after the keys were listed."""
    holder, waiter = (EtcdStore(address_of(node.url(f"listed-{change}"))) for _ in range(2))
    first, second = holder.caller_wire(), waiter.caller_wire()
    run(first.send(c.Open("holder", 60_000, "h"), 5000))
    run(second.send(c.Open("waiter", 60_000, "w"), 5000))
    if change == "granted":
        run(first.send(c.Enter("holder", 1, (PLACE,)), 5000))
        assert isinstance(run(second.send(c.Enter("waiter", 1, (PLACE,)), 5000)), c.Queued)
        changing = partial(first.send, c.Leave("holder", 1), 5000)
    elif change == "moved":
        run(first.send(c.Open("both", 60_000, "b"), 5000))
        run(first.send(c.Enter("holder", 1, (OTHER,)), 5000))
        assert isinstance(run(first.send(c.Enter("both", 1, (OTHER, PLACE)), 5000)), c.Queued)
        assert isinstance(run(second.send(c.Enter("waiter", 1, (PLACE,)), 5000)), c.Queued)
        changing = partial(first.send, c.Break("waiter", 1, (), ahead_of=("both", 1)), 5000)
    else:
        run(second.send(c.Enter("waiter", 1, (PLACE,)), 5000))
        changing = partial(second.send, c.Convert("waiter", 1, 1, "shared"), 5000)
    list_keys = Execution.keys_of_lease

    async def list_keys_and_change(self: Execution, lease: int) -> list[str]:
        listed = await list_keys(self, lease)
        monkeypatch.undo()
        await changing()
        return listed

    monkeypatch.setattr(Execution, "keys_of_lease", list_keys_and_change)
    reply = run(second.send(c.Claims("waiter"), 5000))
    holder.close()
    waiter.close()
    return reply
