"""Three members: any one may fail; with two down everything waits, and then recovers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import lockfast
from tests.measuring import Measured
from tests.processes.contest import PATIENCE_S, PROCESSES, Contest, hold_until_lost
from tests.processes.crew import Crew, crew_in, now_ms, until
from tests.servers.proxy import Proxy, Shape
from tests.servers.zookeeper import ZooKeeperEnsemble

TTL = 3.0
_numbers = itertools.count(1)
GRANTS = 24
"""At least this many grants before the fault and after it."""


class Stage(NamedTuple):
    """An ensemble, and one proxy in front of each member, which clients connect to."""

    ensemble: ZooKeeperEnsemble
    proxies: list[Proxy]

    def url(self, namespace: str, *, only: Proxy | None = None) -> str:
        places = [only] if only is not None else self.proxies
        hosts = ",".join(proxy.address for proxy in places)
        return f"zookeeper://{hosts}?namespace={namespace}"


@pytest.fixture(scope="module")
def harmed() -> Iterator[ZooKeeperEnsemble]:
    """A separate ensemble, because these tests break it."""
    with ZooKeeperEnsemble(3) as started:
        yield started


@pytest.fixture
def stage(harmed: ZooKeeperEnsemble) -> Iterator[Stage]:
    """All members run, whatever the previous test did to them."""
    ensemble = harmed
    ensemble.start_killed()
    ensemble.until_ready()
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(Proxy(("127.0.0.1", member.port))) for member in ensemble.members
        ]
        yield Stage(ensemble, proxies)


@pytest.fixture
def crew(tmp_path: Path, stage: Stage) -> Iterator[Crew]:
    for crew in crew_in(tmp_path):
        crew.url = stage.url(f"crew-{next(_numbers)}")
        yield crew


def kill_the_leader(stage: Stage) -> AbstractContextManager[None]:
    stage.ensemble.leader().kill()
    return nullcontext()


def stop_a_follower(stage: Stage) -> AbstractContextManager[None]:
    return stage.ensemble.followers()[0].stopped()


@contextmanager
def cut_a_member_off(stage: Stage) -> Iterator[None]:
    """Clients no longer reach one member; the members reach each other."""
    for proxy in stage.proxies[:1]:
        for direction in ("request", "reply"):
            proxy.shape(direction, Shape(lost=True))
    yield
    stage.proxies[0].heal()


@pytest.mark.parametrize("harm", [kill_the_leader, stop_a_follower, cut_a_member_off])
def test_one_member_less_and_eight_processes_go_on(
    crew: Crew,
    stage: Stage,
    measured: Measured,
    harm: Callable[[Stage], AbstractContextManager[None]],
) -> None:
    """No overlap, tokens rise in the order of entry, and all processes are granted again."""
    contest = Contest(crew, stage.ensemble, TTL)
    contest.see_everybody(GRANTS)
    with harm(stage):
        harmed_ms = now_ms()
        contest.hear_all()
        recovered_ms = contest.see_everybody(GRANTS)
        contest.end()
    what = harm.__name__.replace("_", " ")
    measured(f"until all {PROCESSES} go on, TTL {TTL:.0f} s: {what}", recovered_ms - harmed_ms)


def test_without_a_majority_nothing_is_granted_and_holders_are_told(
    crew: Crew, stage: Stage
) -> None:
    """Acquires time out, holders are told by their deadlines, then all recovers."""
    holder = crew.start(hold_until_lost, "orders/42", TTL)
    (token,) = holder.hears("held")
    client = crew.client(ttl=TTL)
    client.lock("warm-up").acquire().release()
    with ExitStack() as stack:
        for member in stage.ensemble.members[:2]:
            stack.enter_context(member.stopped())
        with pytest.raises(lockfast.StoreError):
            client.lock("free").acquire(timeout=4)
        assert holder.hears_anything() == "lost"
    lease = client.lock("orders/42").acquire(timeout=90)
    assert lease.token > int(token)
    lease.release()


def test_a_leader_change_ends_no_lease(stage: Stage) -> None:
    """Held locks stay held, and waiters are woken, under the new leader."""
    with (
        lockfast.connect(stage.url("kept"), ttl=20) as client,
        lockfast.connect(stage.url("kept"), ttl=20) as other,
    ):
        lease = client.lock("kept").acquire()
        other.lock("warm-up").acquire().release()
        stage.ensemble.leader().kill()
        granted: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: granted.append(other.lock("kept").acquire()))
        thread.start()
        until(lambda: _waits(other, "kept"), "the other waits", within=PATIENCE_S)
        lease.check()
        lease.release()
        thread.join(PATIENCE_S)
        assert granted[0].token > lease.token
        granted[0].release()


def test_a_session_that_expires_while_it_waits_enters_again(stage: Stage) -> None:
    """Its client is cut off for longer than its session's TTL, and then reaches the ensemble again:
    a new claim is granted when the lock is free, and not before."""
    only = stage.proxies[0]
    with (
        lockfast.connect(stage.ensemble.url("expiry"), ttl=30) as client,
        lockfast.connect(stage.url("expiry", only=only), ttl=1) as cut_off,
    ):
        held = client.lock("a").acquire()
        granted: list[lockfast.Lease] = []
        thread = threading.Thread(
            target=lambda: granted.append(cut_off.lock("a").acquire(timeout=PATIENCE_S))
        )
        thread.start()
        until(lambda: _waits(client, "a"), "it waits", within=PATIENCE_S)
        only.shape("request", Shape(lost=True))
        until(lambda: not _waits(client, "a"), "its session expires", within=PATIENCE_S)
        assert not granted
        only.heal()
        only.reset()
        until(lambda: _waits(client, "a"), "it waits again", within=PATIENCE_S)
        assert not granted
        held.release()
        thread.join(PATIENCE_S)
        assert granted[0].token > held.token
        granted[0].check()
        granted[0].release()


def test_a_holder_cut_off_is_told_and_its_successor_has_a_greater_token(stage: Stage) -> None:
    only = stage.proxies[0]
    with (
        lockfast.connect(stage.url("loss", only=only), ttl=2) as cut_off,
        lockfast.connect(stage.ensemble.url("loss"), ttl=2) as client,
    ):
        held = cut_off.lock("a").acquire()
        for direction in ("request", "reply"):
            only.shape(direction, Shape(held=True))
        taken = client.lock("a").acquire(timeout=PATIENCE_S)
        # Its own clock said so earlier than ZooKeeper's.
        assert held.lost.is_set()
        with pytest.raises(lockfast.LeaseLostError):
            held.check()
        assert taken.token > held.token
        only.heal()
        until(lambda: _is_usable(cut_off), "it goes on", within=PATIENCE_S)
        taken.check()
        taken.release()


def test_tokens_rise_although_all_data_are_lost() -> None:
    """Without its data an ensemble's zxids start again at 0; the epoch compensates."""
    with ZooKeeperEnsemble(3) as ensemble:
        url = ensemble.url("wiped")
        with lockfast.connect(url, ttl=3) as client:
            tokens = [_token(client) for _ in range(20)]
            for member in ensemble.members:
                member.kill()
            for member in ensemble.members:
                member.wipe()
                member.start()
            ensemble.until_ready()
            until(lambda: _is_usable(client), "the same client goes on", within=PATIENCE_S)
            tokens.append(_token(client))
        with lockfast.connect(url, ttl=3) as newcomer:
            tokens.append(_token(newcomer))
    assert tokens == sorted(set(tokens))


def _token(client: lockfast.Client) -> int:
    with client.lock("a") as lease:
        return lease.token


def _waits(client: lockfast.Client, name: str) -> bool:
    try:
        return client.inspect(name).waiting_count == 1
    except lockfast.StoreError:
        return False


def _is_usable(client: lockfast.Client) -> bool:
    try:
        client.lock("another").acquire(timeout=5).release()
    except lockfast.LockfastError:
        return False
    return True
