"""Holders that are released at the same moment: the last of them grants the lock to the next claim.

The test holds the transactions back until all releases have read and decided, so that each of them
has found the others among the holders.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from lockfast.core import commands as c
from lockfast.core.modes import MODES_OF_KIND
from lockfast.runtimes.threads import run
from lockfast.stores.derived.steps import SEVERAL_MAX
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.batches import Proposal
from lockfast.stores.etcd.plan import Plan
from lockfast.stores.etcd.requests import Keys, Range
from tests.etcd.harness import address_of
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer
from tests.servers.etcd import EtcdCluster

LIMIT = 4
READERS = [c.Place("lock", "orders/42", "shared")] * 3
PERMITS = [c.Place("semaphore", "api", "permit", weight, LIMIT) for weight in (1, 1, 2)]
INTENTS = [
    c.Place("tree", "warehouse", mode)
    for mode in ("intent_exclusive", "intent_exclusive", "intent_shared")
]


class Session:
    """One session without a keeper, on its own store object."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.store = EtcdStore(address_of(url))
        self._wire = self.store.caller_wire()
        assert self.send(c.Open(name, 60_000, name, "", name)) == c.Done(found=False)

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, 10_000))

    def enter(self, place: c.Place) -> c.Reply:
        return self.send(c.Enter(self.name, 1, (place,)))


@pytest.mark.parametrize(
    ("held", "leaving", "wanted"),
    [
        (READERS[:2], 2, READERS[0]._replace(mode="exclusive")),
        (READERS, 3, READERS[0]._replace(mode="exclusive")),
        (PERMITS, 2, PERMITS[0]._replace(weight=2)),
        (INTENTS, 2, INTENTS[0]._replace(mode="shared")),
    ],
)
def test_the_last_of_those_who_leave_together_hands_over(
    node: EtcdCluster,
    monkeypatch: pytest.MonkeyPatch,
    held: list[c.Place],
    leaving: int,
    wanted: c.Place,
) -> None:
    assert all(place.mode in MODES_OF_KIND[place.kind] for place in (*held, wanted))
    url = node.url()
    holders = [Session(url, f"s{i}") for i in range(len(held))]
    waiter = Session(url, "w")
    for session, place in zip(holders, held, strict=True):
        assert isinstance(session.enter(place), c.Granted)
    assert isinstance(waiter.enter(wanted), c.Queued)
    have_decided = threading.Barrier(leaving, timeout=30)
    decided: set[Keys] = set()
    right = Plan.proposal

    def held_back(self: Plan, leases: list[int], wants: Iterable[Range]) -> Proposal:
        if self.keys not in decided:  # the first attempt of this session
            decided.add(self.keys)
            have_decided.wait()
        return right(self, leases, wants)

    monkeypatch.setattr(Plan, "proposal", held_back)
    threads = [
        threading.Thread(target=session.send, args=(c.Leave(session.name, 1, (place,)),))
        for session, place in list(zip(holders, held, strict=True))[:leaving]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    view = waiter.send(c.Inspect(wanted.kind, wanted.name, 16))
    assert isinstance(view, c.ResourceView)
    assert [claim.session for claim in view.waiting] == []
    assert "w" in [claim.session for claim in view.holders]
    for session in (*holders, waiter):
        session.store.close()


def test_a_claim_on_many_semaphores_can_leave_while_others_hold_and_wait() -> None:
    """The others are more than one transaction can compare."""
    server = ModelServer()
    places = [c.Place("semaphore", f"api/{i:02}", "permit", 1, LIMIT) for i in range(SEVERAL_MAX)]
    clients = [Client(server, f"s{i}") for i in range(LIMIT + 1)]
    *holders, waiter = clients
    for client in holders:
        assert isinstance(client.send(c.Enter(client.session, 1, tuple(places))), c.Granted)
    wanted = tuple(place._replace(weight=2) for place in places)
    assert isinstance(waiter.send(c.Enter(waiter.session, 1, wanted)), c.Queued)
    for client in holders:
        assert client.send(c.Leave(client.session, 1, tuple(places))) == c.Done()
    waiter.listen()
    assert waiter.granted == [1]
