"""Who stands in line does not touch the lock's row: a hand-over compares the line itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.outcome import Instant
from lockfast.stores.etcd.rows import stored_key
from lockfast.stores.etcd.sockets import BlockingTransport
from lockfast.stores.etcd.wire import EtcdWire
from tests.etcd.harness import writes
from tests.etcd.test_losses import A, revoke_lease, store_at
from tests.servers.etcd import EtcdCluster

B = c.Place("lock", "orders/43", "exclusive")
LATE_MS = 500
"""A clock may be this much behind: whoever goes by it stands before those who came earlier."""


class Client:
    """A store of its own, with one session."""

    def __init__(self, url: str, session: str) -> None:
        self.session = session
        self.store = store_at(url)
        wire = self.store.caller_wire()
        assert isinstance(wire, EtcdWire)
        self.wire = wire
        assert isinstance(self.enter(1, c.Place("lock", f"of {session}", "exclusive")), c.Granted)

    def enter(self, n: int, place: c.Place) -> c.Reply:
        return run(self.wire.send(self.entering(n, place), 20_000))

    def entering(self, n: int, place: c.Place) -> c.Enter:
        opening = c.Open(self.session, 60_000, f"owner of {self.session}")
        return c.Enter(self.session, n, (place,), open=opening)

    def leave(self, n: int, place: c.Place) -> c.Reply:
        return run(self.wire.send(c.Leave(self.session, n, (place,)), 20_000))

    def look(self, n: int) -> c.Reply:
        return run(self.wire.send(c.Look(self.session, n), 20_000))


@pytest.fixture
def clients(node: EtcdCluster) -> Iterator[list[Client]]:
    url = node.url()
    made = [Client(url, name) for name in ("holder", "first", "second")]
    yield made
    for client in made:
        client.store.close()


def row_revision(store: EtcdStore) -> int:
    """Which revision wrote the lock's row."""
    gateway = Gateway(store.shared.cluster, BlockingTransport(store.shared.cluster.address))
    read = store.shared.keys.range(stored_key(r.resource_key(*A[:2])))
    answer = run(gateway.txn({"success": [read]}, monotonic() + 20, repeatable=True))
    gateway.transport.close()
    return store.shared.keys.found(answer["responses"][0]).kvs[0].mod


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Awaitable[Any]]]:
    """What happens just before the next transaction that writes."""
    jobs: list[Callable[[], Awaitable[Any]]] = []
    send = Gateway.txn

    async def txn(gateway: Gateway, body: Any, until_s: float, **rest: Any) -> Any:
        if jobs and writes(body):
            await jobs.pop()()
        return await send(gateway, body, until_s, **rest)

    monkeypatch.setattr(Gateway, "txn", txn)
    return jobs


def test_somebody_stands_in_line_while_the_holder_leaves_an_empty_one(
    clients: list[Client], meanwhile: list[Callable[[], Awaitable[Any]]]
) -> None:
    """It is not left behind in a line that nobody serves."""
    holder, first, _ = clients
    assert isinstance(holder.enter(2, A), c.Granted)

    async def queue() -> None:
        before = row_revision(first.store)
        reply = await first.wire.send(first.entering(2, A), 20_000)
        assert isinstance(reply, c.Queued), reply
        assert row_revision(first.store) == before, "the row does not show that it came"

    meanwhile.append(queue)
    assert holder.leave(2, A) == c.Done()
    assert not meanwhile, "the interleaving was not forced"
    assert isinstance(first.look(2), c.Granted)


def test_somebody_stands_before_the_one_who_is_about_to_be_granted(
    clients: list[Client], meanwhile: list[Callable[[], Awaitable[Any]]]
) -> None:
    """By a clock that is a little behind: it goes first, and there is one holder."""
    holder, first, second = clients
    assert isinstance(holder.enter(2, A), c.Granted)
    assert isinstance(second.enter(2, A), c.Queued)

    async def queue() -> None:
        before, now = row_revision(first.store), Instant.now()
        late = now._replace(now_ms=now.now_ms - LATE_MS)
        outcome = await first.wire.step(first.entering(2, A), monotonic() + 20, late)
        assert isinstance(outcome.reply, c.Queued), outcome
        assert row_revision(first.store) == before, "the row does not show that it came"

    async def nothing() -> None:
        """The holder finds out that somebody waits."""

    meanwhile.extend([queue, nothing])
    assert holder.leave(2, A) == c.Done()
    assert not meanwhile, "the interleaving was not forced"
    granted = first.look(2)
    assert isinstance(granted, c.Granted)
    assert isinstance(second.look(2), c.Queued)
    assert first.leave(2, A) == c.Done()
    after = second.look(2)
    assert isinstance(after, c.Granted)
    assert after.token > granted.token


def test_the_one_who_is_about_to_be_granted_gives_up(
    clients: list[Client], meanwhile: list[Callable[[], Awaitable[Any]]]
) -> None:
    """The row does not show that it left: the next in line is granted, and nobody else."""
    holder, first, second = clients
    assert isinstance(holder.enter(2, A), c.Granted)
    assert isinstance(first.enter(2, A), c.Queued)
    assert isinstance(second.enter(2, A), c.Queued)

    async def give_up() -> None:
        before = row_revision(first.store)
        assert await first.wire.send(c.Leave("first", 2, (A,)), 20_000) == c.Done()
        assert row_revision(first.store) == before, "the row does not show that it left"

    async def nothing() -> None:
        """The holder finds out that somebody waits."""

    meanwhile.extend([give_up, nothing])
    assert holder.leave(2, A) == c.Done()
    assert not meanwhile, "the interleaving was not forced"
    assert isinstance(second.look(2), c.Granted)
    view = run(second.wire.send(c.Inspect(*A[:2]), 20_000))
    assert isinstance(view, c.ResourceView)
    assert (view.holder_count, view.waiting_count) == (1, 0)


def test_the_writer_between_two_readers_gives_up_while_the_first_is_granted(
    clients: list[Client], meanwhile: list[Callable[[], Awaitable[Any]]]
) -> None:
    """Both readers hold then: nobody stops at one who is gone."""
    holder, first, second = clients
    shared = A._replace(mode="shared")
    assert isinstance(holder.enter(2, A), c.Granted)
    assert isinstance(first.enter(2, shared), c.Queued)
    assert isinstance(second.enter(2, A), c.Queued)
    assert isinstance(first.enter(3, shared), c.Queued)

    async def give_up() -> None:
        assert await second.wire.send(c.Leave("second", 2, (A,)), 20_000) == c.Done()

    async def nothing() -> None:
        """The holder finds out that somebody waits."""

    meanwhile.extend([give_up, nothing])
    assert holder.leave(2, A) == c.Done()
    assert not meanwhile, "the interleaving was not forced"
    assert isinstance(first.look(2), c.Granted)
    assert isinstance(first.look(3), c.Granted)


@pytest.mark.parametrize("others", [0, 40])
def test_two_who_give_up_are_not_in_each_others_way(
    clients: list[Client], meanwhile: list[Callable[[], Awaitable[Any]]], others: int
) -> None:
    """Nor if the line is longer than what is read of it at first."""
    holder, first, second = clients
    assert isinstance(holder.enter(2, A), c.Granted)
    assert isinstance(first.enter(2, A), c.Queued)
    for n in range(3, 3 + others):
        assert isinstance(first.enter(n, A), c.Queued)
    assert isinstance(second.enter(2, A), c.Queued)
    sent: list[int] = []

    async def give_up() -> None:
        assert await first.wire.send(c.Leave("first", 2, (A,)), 20_000) == c.Done()
        meanwhile.append(note)

    async def note() -> None:
        sent.append(1)

    meanwhile.append(give_up)
    assert second.leave(2, A) == c.Done()
    assert not sent, "it had to be worked out again"
    assert holder.leave(2, A) == c.Done()


def test_whoever_opens_a_session_ends_those_that_live_no_more(
    node: EtcdCluster, clients: list[Client]
) -> None:
    """Also of locks that nobody asks for: else they would be listed as held for ever."""
    holder, first, _ = clients
    assert isinstance(holder.enter(2, B), c.Granted)
    revoke_lease(node, holder.store, "holder")

    def seen() -> int:
        view = run(first.wire.send(c.Inspect(*B[:2]), 20_000))
        assert isinstance(view, c.ResourceView)
        return view.holder_count

    assert seen() == 1, "nobody has met it yet"
    newcomer = EtcdStore(first.store.shared.cluster.address)
    opening = c.Open("newcomer", 60_000, "owner of newcomer")
    run(newcomer.caller_wire().send(c.Enter("newcomer", 1, (A,), open=opening), 20_000))
    newcomer.close()
    assert seen() == 0
