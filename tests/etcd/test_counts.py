"""What the store costs, counted at the server."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lockfast
import lockfast.aio
from lockfast.core.commands import Command, Renew, Renewed
from lockfast.flow.holding import Phase
from lockfast.runtimes.threads import run
from lockfast.stores.etcd.knowledge import Knowledge
from lockfast.stores.etcd.outcome import Outcome
from lockfast.stores.etcd.shared import Row
from lockfast.stores.etcd.wire import EtcdWire
from tests.etcd import roles
from tests.processes.crew import Crew, crew_in, until
from tests.servers.etcd import EtcdCluster


@pytest.fixture(scope="module")
def quiet() -> Iterator[EtcdCluster]:
    """A node that nobody else uses."""
    with EtcdCluster(1) as started:
        yield started


@pytest.fixture
def alone() -> Iterator[EtcdCluster]:
    """A node for one test, whose crowd may still be leaving when it ends."""
    with EtcdCluster(1) as started:
        yield started


class Counting:
    """Requests since it was made."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._member = cluster.members[0]
        self._before = self._member.counters()

    def seen(self) -> dict[str, int]:
        now = self._member.counters()
        return {
            method: count - self._before.get(method, 0)
            for method, count in now.items()
            if count > self._before.get(method, 0)
        }


def test_acquire_and_release_are_one_transaction_each(quiet: EtcdCluster) -> None:
    with lockfast.connect(quiet.url(), ttl=60) as client:
        client.lock("warm-up").acquire().release()
        counting = Counting(quiet)
        client.lock("orders/42").acquire().release()
        assert counting.seen() == {"Txn": 2}


def test_acquire_and_release_are_one_transaction_each_under_asyncio(quiet: EtcdCluster) -> None:
    async def story() -> dict[str, int]:
        async with lockfast.aio.connect(quiet.url(), ttl=60) as client:
            await (await client.lock("warm-up").acquire()).release()
            counting = Counting(quiet)
            await (await client.lock("orders/42").acquire()).release()
            return counting.seen()

    assert asyncio.run(story()) == {"Txn": 2}


@pytest.mark.parametrize("names", [2, 40])
def test_several_at_once_are_one_transaction(quiet: EtcdCluster, names: int) -> None:
    with lockfast.connect(quiet.url(), ttl=60) as client:
        client.lock("warm-up").acquire().release()
        counting = Counting(quiet)
        with client.all(*(f"accounts/{i}" for i in range(names))):
            pass
        assert counting.seen() == {"Txn": 2}


def test_more_than_forty_at_once_are_refused_before_anything_is_sent(quiet: EtcdCluster) -> None:
    with lockfast.connect(quiet.url(), ttl=60) as client:
        client.lock("warm-up").acquire().release()
        counting = Counting(quiet)
        with pytest.raises(lockfast.UnsupportedError, match="41"):
            client.all(*(f"accounts/{i}" for i in range(41))).acquire()
        assert counting.seen() == {}


def knows_it_waits(client: lockfast.Client) -> bool:
    """Whether a claim has heard that it is in line."""
    return any(
        holding.phase is Phase.WAITING
        for session in client._core.sessions()
        for holding in session.holdings()
    )


def test_a_hand_over_is_two_transactions_at_most(quiet: EtcdCluster) -> None:
    """The release grants, the watch tells the grant: the waiter asks nothing."""
    url = quiet.url()
    with lockfast.connect(url, ttl=60) as holder, lockfast.connect(url, ttl=60) as waiter:
        waiter.lock("warm-up").acquire().release()
        held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        waiting = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        waiting.start()
        until(lambda: knows_it_waits(waiter), "it waits")
        counting = Counting(quiet)
        held.release()
        waiting.join()
        seen = counting.seen()
        assert got[0].token > held.token
        assert seen.pop("Txn") <= 2
        assert set(seen) <= {"Watch", "Range"}, seen
        got[0].release()


def test_a_holder_that_knows_who_waits_hands_over_as_it_leaves(quiet: EtcdCluster) -> None:
    """Whoever stands in line first says so: the release is the whole hand-over."""
    url = quiet.url()
    with lockfast.connect(url, ttl=60) as holder, lockfast.connect(url, ttl=60) as waiter:
        waiter.lock("warm-up").acquire().release()
        held = holder.lock("orders/42").acquire()
        session = held._holding.session
        assert session is not None
        shared = holder._core.store.shared  # type: ignore[attr-defined]
        assert isinstance(shared.held(session.id, held._holding.n), Row)
        got: list[lockfast.Lease] = []
        waiting = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        waiting.start()
        told = partial(shared.held, session.id, held._holding.n)
        until(lambda: isinstance(told(), Knowledge), "the holder is told")
        until(lambda: knows_it_waits(waiter), "it waits")
        counting = Counting(quiet)
        held.release()
        waiting.join()
        seen = counting.seen()
        assert got[0].token > held.token
        assert seen.pop("Txn") == 1
        assert set(seen) <= {"Watch"}, seen
        got[0].release()


class Commands:
    """What the clients of this process have their stores do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[type] = Counter()
        step = EtcdWire.step

        async def noted(wire: EtcdWire, command: Command, *rest: Any) -> Outcome:
            self.seen[type(command)] += 1
            return await step(wire, command, *rest)

        monkeypatch.setattr(EtcdWire, "step", noted)


def watches_over_those_ahead(client: lockfast.aio.Client) -> bool:
    """Whether a client has subscribed to all that it means to while it waits."""
    listeners: list[Any] = [session.listener for session in client._core.sessions()]
    return all(
        listener is not None and listener._leases and listener._leases_due() is None
        for listener in listeners
    )


def test_two_hundred_waiters_send_nothing_but_keep_alives(
    alone: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through two keep-alives of everybody, four seconds apart."""
    url, commands = alone.url(), Commands(monkeypatch)
    clients, waiters_each, rounds, ttl = 8, 25, 2, 12.0
    sessions = clients + 1

    async def wait_until(true: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(until, true, what, 120.0)

    async def story() -> None:
        async with (
            asyncio.TaskGroup() as group,
            lockfast.aio.connect(url, ttl=ttl, connect_timeout=60) as holder,
        ):
            lease = await holder.lock("orders/42").acquire()
            others = [
                lockfast.aio.connect(url, ttl=ttl, connect_timeout=60) for _ in range(clients)
            ]
            waiters = [
                group.create_task(other.lock("orders/42").acquire())
                for other in others
                for _ in range(waiters_each)
            ]
            while (await holder.inspect("orders/42")).waiting_count < len(waiters):
                await asyncio.sleep(0)
            await wait_until(lambda: all(map(watches_over_those_ahead, others)), "all watch")
            commands.seen.clear()
            counting = Counting(alone)
            await wait_until(
                lambda: counting.seen().get("LeaseKeepAlive", 0) >= rounds * sessions,
                f"{rounds} keep-alives of each",
            )
            seen, sent = counting.seen(), dict(commands.seen)
            assert set(sent) == {Renew}, "nothing but keep-alives is sent"
            # Whom to watch over may have changed once more meanwhile.
            assert seen.pop("Watch", 0) <= sessions
            assert set(seen) == {"LeaseKeepAlive", "Txn"}, seen
            # Each proves what the session has, and settles the line it waits in. One that was
            # under way at the beginning has its transactions counted, and not itself.
            assert seen["Txn"] <= 4 * (seen["LeaseKeepAlive"] + sessions), seen
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
            for other in others:
                await other.close()
            await lease.release()

    asyncio.run(story())


@pytest.fixture
def crew(tmp_path: Path, quiet: EtcdCluster) -> Iterator[Crew]:
    for crew in crew_in(tmp_path):
        crew.url = quiet.url()
        yield crew


def test_eight_processes_need_three_requests_per_grant(crew: Crew, quiet: EtcdCluster) -> None:
    """On average, at most; and every grant has a token of its own."""
    processes, times = 8, 40
    children = [crew.start(roles.count_up, "counter", times) for _ in range(processes)]
    for child in children:
        child.hears("ready")
    counting = Counting(quiet)
    for child in children:
        child.tell("begin")
    tokens = [int(token) for child in children for token in child.hears("tokens", 60)]
    seen = counting.seen()
    assert len(set(tokens)) == processes * times
    asked = sum(count for method, count in seen.items() if method != "LeaseKeepAlive")
    assert asked <= 3 * processes * times, seen
    for child in children:
        child.tell("end")


def test_keep_alive_of_ten_thousand_locks_reads_none_of_them(alone: EtcdCluster) -> None:
    """It is as many requests as for one lock: what has changed is read, and that is nothing."""
    at_once, times = 40, 250
    with lockfast.connect(alone.url(), ttl=600) as client:
        groups = [
            client.all(*(f"orders/{group}/{i}" for i in range(at_once))).acquire()
            for group in range(times)
        ]
        assert at_once * len(groups) == 10_000
        session = groups[0]._holding.session
        assert session is not None
        store = client._core.store
        shared = store.shared  # type: ignore[attr-defined]
        keeper = store.keeper_wire()
        proof = session.proof()
        assert proof.count == times
        command = Renew(session.id, proof.count, proof.checksum, proof.lowest, proof.waiting)
        for _ in range(2):
            reply = run(keeper.send(command, 5000))
            assert isinstance(reply, Renewed)
            assert reply.matches
        counting, sizes = Counting(alone), Sizes(keeper)
        reply = run(keeper.send(command, 5000))
        assert isinstance(reply, Renewed)
        assert reply.matches
        assert counting.seen() == {"LeaseKeepAlive": 1, "Txn": 2}
        assert max(sizes.seen) < 3000, "no claim was sent or received"
        assert len(shared.accounts[session.id].tokens) == times
        for group in groups:
            group.check()


class Sizes:
    """How many bytes each request of a wire and its answer have."""

    def __init__(self, wire: Any) -> None:
        self.seen: list[int] = []
        transport = wire.gateway.transport
        exchange = transport.exchange

        async def noted(endpoint: Any, packed: bytes, *rest: Any) -> Any:
            response = await exchange(endpoint, packed, *rest)
            self.seen.append(len(packed) + len(response.body))
            return response

        transport.exchange = noted
