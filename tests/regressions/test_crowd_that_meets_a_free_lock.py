"""Callers of one client that ask for the same lock together must not make each other fail.

If the holder released the lock while they were entering, every one of them read the queue, decided
and committed. One commit succeeded and all others read and decided again, so their number of
requests grew with the square of theirs: with 40 tasks of a new asyncio client on etcd or ZooKeeper,
30 got StoreUnavailableError after `connect_timeout`, although the store was well. On PostgreSQL
the same happened to hundreds of threads, which waited for one of sixteen connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import lockfast
import lockfast.aio
from lockfast.core.commands import Command, Done, Enter, Granted, Leave, Open, Place, Reply
from lockfast.errors import (
    AcquireTimeoutError,
    StoreBusyError,
    StoreUnavailableError,
)
from lockfast.runtimes.threads import ThreadSignal, run
from lockfast.stores.derived.machine import ThisMachine
from lockfast.stores.derived.steps import Conflicts
from lockfast.stores.derived.turns import Turn, Turns
from lockfast.stores.postgresql.opening import open_store
from lockfast.stores.postgresql.wire import BlockingWire
from lockfast.stores.registry import parse_url
from tests.servers.etcd import EtcdCluster
from tests.servers.zookeeper import ZooKeeperEnsemble

CROWD = 40
PLACE = Place("lock", "orders/42", "exclusive")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(1) as ensemble:
        yield ensemble


@pytest.fixture
def conflicts(monkeypatch: pytest.MonkeyPatch) -> list[Conflicts]:
    """Return a list that gets an entry for each conflict."""
    seen: list[Conflicts] = []
    another = Conflicts.another

    async def count(self: Conflicts) -> bool:
        seen.append(self)
        return await another(self)

    monkeypatch.setattr(Conflicts, "another", count)
    return seen


def enter_and_leave(url: str) -> None:
    """Let the tasks of a new client take a lock once each, and release it at once."""

    async def main() -> None:
        async with lockfast.aio.connect(url, ttl=60) as client:

            async def one() -> None:
                lease = await client.lock("orders/42").acquire(timeout=60)
                await lease.release()

            await asyncio.gather(*(one() for _ in range(CROWD)))

    asyncio.run(main())


def test_tasks_do_not_conflict_in_etcd(etcd: EtcdCluster, conflicts: list[Conflicts]) -> None:
    enter_and_leave(etcd.url("tasks"))
    assert len(conflicts) <= CROWD, "one for each pair was usual"


def test_tasks_conflict_once_in_zookeeper(
    zookeeper: ZooKeeperEnsemble, conflicts: list[Conflicts]
) -> None:
    enter_and_leave(zookeeper.url("tasks"))
    assert len(conflicts) <= 3 * CROWD, "each may meet others at its first attempt"


def test_permits_do_not_conflict_in_etcd(etcd: EtcdCluster, conflicts: list[Conflicts]) -> None:
    """Semaphores have no shortcut: every claim is read, decided and committed."""
    with lockfast.connect(etcd.url("permits"), ttl=60) as client:
        permits = client.semaphore("api", limit=CROWD)
        threads = [
            threading.Thread(target=lambda: permits.acquire(timeout=60).release())
            for _ in range(CROWD)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(conflicts) <= CROWD


# ── turns ────────────────────────────────────────────────────────────────────────────


class Minute(ThisMachine):
    """A machine whose clock a test moves."""

    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms


class AtOnce(ThreadSignal):
    """A signal that does not wait."""

    async def wait(self, timeout_ms: int | None) -> bool:
        return self.is_set()


def test_a_turn_that_does_not_come_is_given_up() -> None:
    machine = Minute()
    turns = Turns(machine)
    first, second, third, other = (
        Turn(turns, ("lock", name), AtOnce, 1000, goes_first=False) for name in "aaab"
    )
    assert not run(first.take())
    assert not run(first.take()), "it has it"
    with pytest.raises(TimeoutError):
        run(second.take())
    assert not run(other.take())
    first.end()
    second.end()  # it never had it
    assert not run(second.take()), "nobody else has it"
    machine.at_ms = 1001
    assert not run(third.take()), "the second was interrupted before it could end its turn"
    for each in (second, third, other):
        each.end()
    assert not turns.lines


def test_turns_come_in_order_and_releases_first() -> None:
    turns, order, name = Turns(Minute()), list[str](), ("lock", "a")
    first = Turn(turns, name, ThreadSignal, 60_000, goes_first=False)
    assert not run(first.take())

    def follow(what: str, goes_first: bool) -> None:
        mine = Turn(turns, name, ThreadSignal, 60_000, goes_first=goes_first)
        assert run(mine.take()), "it had to wait"
        order.append(what)
        mine.end()

    threads = []
    for what, goes_first in (("enter 1", False), ("enter 2", False), ("leave", True)):
        threads.append(threading.Thread(target=follow, args=(what, goes_first)))
        threads[-1].start()
        while len(turns.lines[name].waiting) < len(threads):
            pass
    first.end()
    for thread in threads:
        thread.join(60)
    assert order == ["leave", "enter 1", "enter 2"]


# ── a busy store is not an unreachable one ───────────────────────────────────────────


class BusyWire:
    """Has no time for claims, `times` times."""

    def __init__(self, client: lockfast.Client, times: int, error: type[StoreUnavailableError]):
        self._core, self._send, self._left = client._core, client._core.wire.send, times
        self._error = error
        self.sent = 0

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if isinstance(command, Enter):
            self.sent += 1
            self._left -= 1
            if self._left >= 0:
                await self._core.runtime.signal().wait(timeout_ms)
                raise self._error("memory://", "is busy")
        return await self._send(command, timeout_ms)


def test_a_claim_waits_for_a_busy_store_as_long_as_it_may() -> None:
    with lockfast.connect("memory://busy", connect_timeout=0.02) as client:
        busy = BusyWire(client, 3, StoreBusyError)
        client._core.wire.send = busy.send  # type: ignore[method-assign]
        client.lock("orders/42").acquire(timeout=60).release()
        assert busy.sent == 4


def test_it_gives_up_at_its_timeout() -> None:
    with lockfast.connect("memory://busy-for-long", connect_timeout=0.02) as client:
        busy = BusyWire(client, 1 << 30, StoreBusyError)
        client._core.wire.send = busy.send  # type: ignore[method-assign]
        with pytest.raises(AcquireTimeoutError, match="is busy"):
            client.lock("orders/42").acquire(timeout=0.1)
        with pytest.raises(StoreBusyError):
            client.lock("orders/42").try_acquire()


def test_an_outage_ends_the_patience() -> None:
    """If the store is down, requests that wait for others must not wait for each of them."""
    with lockfast.connect("memory://busy-and-down", connect_timeout=0.02) as client:
        client._core.emitter.outage.failed(StoreUnavailableError("memory://", "is down"))
        busy = BusyWire(client, 1 << 30, StoreBusyError)
        client._core.wire.send = busy.send  # type: ignore[method-assign]
        with pytest.raises(StoreBusyError):
            client.lock("orders/42").acquire(timeout=60)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────


def test_a_release_needs_no_connection_of_the_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    done, seen = threading.Event(), list[Command]()

    def on_a_connection(self: BlockingWire, command: Command, *about: object) -> Reply:
        seen.append(command)
        if isinstance(command, Leave):
            return Done()
        assert done.wait(60)
        return Granted(1, 0, "exclusive")

    monkeypatch.setattr(BlockingWire, "_on_a_connection", on_a_connection)
    wire = open_store(parse_url("postgresql://nobody@localhost/none?connections=2"), "threads")
    sender = wire.caller_wire()
    opening = Open("s", 1000, "owner", "", "", "")
    crowd = [
        threading.Thread(
            target=run, args=(sender.send(Enter("s", n, (PLACE,), open=opening), 60_000),)
        )
        for n in range(1, 4)
    ]
    for thread in crowd:
        thread.start()
    try:
        assert run(sender.send(Leave("s", 9), 60_000)) == Done(), "while all claims wait"
        with pytest.raises(StoreBusyError, match="all 2 connections"):
            run(sender.send(Enter("s", 10, (PLACE,)), 2))
    finally:
        done.set()
        for thread in crowd:
            thread.join(60)
        sender.close()
    openings = [command.open for command in seen if isinstance(command, Enter)]
    assert openings == [opening, None, None], "the session is open by then"


def test_half_of_the_time_is_left_for_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_s: list[float] = []

    class Slots:
        def acquire(self, timeout: float) -> bool:
            waited_s.append(timeout)
            return True

        def release(self) -> None: ...

    monkeypatch.setattr(BlockingWire, "_on_a_connection", lambda *about: Done())
    store = open_store(parse_url("postgresql://nobody@localhost/none"), "threads")
    sender = store.caller_wire()
    monkeypatch.setattr(sender, "_slots", Slots())
    assert run(sender.send(Leave("s", 9), 60_000)) == Done()
    assert [each <= 30 for each in waited_s] == [True]
    sender.close()
