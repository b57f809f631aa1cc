"""Three members: any one may fail; with two down everything waits, and then recovers."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import parse
from lockfast.stores.registry import parse_url
from tests.measuring import Measured
from tests.processes.contest import PATIENCE_S, PROCESSES, Contest, hold_until_lost
from tests.processes.crew import Crew, crew_in, now_ms, until
from tests.servers.etcd import EtcdCluster, EtcdMember

TTL = 3.0
GRANTS = 24
"""At least this many grants before the fault and after it."""


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    """A separate cluster, because these tests break it."""
    with EtcdCluster(3) as started:
        yield started


@pytest.fixture
def crew(tmp_path: Path, cluster: EtcdCluster) -> Iterator[Crew]:
    for crew in crew_in(tmp_path):
        crew.url = cluster.url("crew")
        yield crew


def kill_the_leader(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    cluster.leader().kill()
    return contextlib.nullcontext()


def stop_a_follower(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    return cluster.followers()[0].stopped()


def kill_the_endpoint(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    """Kill the member that all clients use: the first in the URL."""
    cluster.members[0].kill()
    return contextlib.nullcontext()


@pytest.mark.parametrize("harm", [kill_the_leader, stop_a_follower, kill_the_endpoint])
def test_one_member_less_and_eight_processes_go_on(
    crew: Crew,
    cluster: EtcdCluster,
    measured: Measured,
    harm: Callable[[EtcdCluster], contextlib.AbstractContextManager[None]],
) -> None:
    """No overlap, tokens rise in the order of entry, and all processes are granted again."""
    if harm is not kill_the_endpoint:
        # Connect to the member that is broken, so that it matters.
        harmed = cluster.leader() if harm is kill_the_leader else cluster.followers()[0]
        others = [member for member in cluster.members if member is not harmed]
        crew.url = cluster.url("crew", harmed, *others)
    contest = Contest(crew, cluster, TTL)
    contest.see_everybody(GRANTS)
    with harm(cluster):
        harmed_ms = now_ms()
        contest.hear_all()
        recovered_ms = contest.see_everybody(GRANTS)
        contest.end()
    what = harm.__name__.replace("_", " ")
    measured(f"until all {PROCESSES} go on, TTL {TTL:.0f} s: {what}", recovered_ms - harmed_ms)


def two_stopped(cluster: EtcdCluster) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for member in cluster.members[:2]:
        stack.enter_context(member.stopped())
    return stack


def test_without_a_majority_nothing_is_granted_and_holders_are_told(
    crew: Crew, cluster: EtcdCluster
) -> None:
    """Acquires time out, holders are told by their deadlines, then all recovers."""
    holder = crew.start(hold_until_lost, "orders/42", TTL)
    (token,) = holder.hears("held")
    client = crew.client(ttl=TTL)
    client.lock("warm-up").acquire().release()
    with two_stopped(cluster):
        with pytest.raises(lockfast.StoreUnavailableError):
            client.lock("free").acquire(timeout=4)
        assert holder.hears_anything() == "lost"
    lease = client.lock("orders/42").acquire(timeout=90)
    assert lease.token > int(token)
    lease.release()


def test_whoever_listens_to_a_member_without_a_leader_turns_away(cluster: EtcdCluster) -> None:
    """The member reports it, as requested, and keeps the connection: nothing follows."""
    store = EtcdStore(parse(parse_url(cluster.url("silent", cluster.members[2]))))
    listener: Any = store.wake_listener("session", lambda wake: None)
    stream = listener._watcher._stream

    def listens() -> bool:
        run(listener.listen(100))
        return bool(stream.is_open())

    until(listens, "it listens", within=PATIENCE_S)
    connection = stream._connection

    def turned_away() -> bool:
        run(listener.listen(100))
        return stream._connection is not connection

    with two_stopped(cluster):
        until(turned_away, "it turns away", within=PATIENCE_S)
    until(listens, "it listens again", within=PATIENCE_S)
    listener.close()
    store.close()


def test_a_leader_change_starts_leases_anew_and_ends_none(cluster: EtcdCluster) -> None:
    """Held locks stay held, and a dead holder's lock is free a little later."""
    members = [m for m in cluster.members if m is not cluster.leader()]
    url = cluster.url("leaders", *members)
    with lockfast.connect(url, ttl=TTL) as client, lockfast.connect(url, ttl=TTL) as other:
        lease = client.lock("kept").acquire()
        other.lock("warm-up").acquire().release()
        cluster.leader().kill()
        waiting: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: waiting.append(other.lock("kept").acquire()))
        thread.start()
        until(lambda: _waits(other, "kept"), "the other waits")
        lease.check()
        lease.release()
        thread.join(30)
        assert waiting[0].token > lease.token
        waiting[0].release()


def time_left_s(member: EtcdMember, lease: int) -> int | None:
    """Return what a member says is left of a lease, in whole seconds; None if it cannot say."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        told = member.call("/v3/lease/timetolive", {"ID": str(lease)})
        if "TTL" in told:
            return int(told["TTL"])
    return None


def test_a_leader_change_starts_the_ttl_of_the_dead_anew(cluster: EtcdCluster) -> None:
    """It is not renewed, and yet it has its whole TTL again, as the docs say."""
    ttl_s, spent_s = 60, 4
    store = EtcdStore(parse(parse_url(cluster.url("dead"))))
    place = c.Place("lock", "orders/42", "exclusive")
    opening = c.Open("dead", ttl_s * 1000, "owner")
    granted = run(store.caller_wire().send(c.Enter("dead", 1, (place,), open=opening), 20_000))
    assert isinstance(granted, c.Granted)
    own = store.context.own.get("dead")
    assert own is not None
    assert own.record is not None
    lease = own.record.lease
    store.close()
    leader = cluster.leader()
    until(
        lambda: (time_left_s(leader, lease) or ttl_s) <= ttl_s - spent_s,
        "some of its time is spent",
        within=PATIENCE_S,
    )
    killed_s = monotonic()
    leader.kill()
    member = next(one for one in cluster.members if one is not leader)
    left_s: list[int] = []

    def told() -> bool:
        found = time_left_s(member, lease)
        if found is not None:
            left_s.append(found)
        return found is not None

    until(told, "the new leader counts", within=PATIENCE_S)
    since_s = monotonic() - killed_s
    assert left_s[0] + since_s + 1 >= ttl_s, "it went on counting where the old leader was"


def _waits(client: lockfast.Client, name: str) -> bool:
    try:
        return client.inspect(name).waiting_count == 1
    except lockfast.StoreError:
        return False


def test_members_of_two_clusters_are_refused(cluster: EtcdCluster, node: EtcdCluster) -> None:
    first, second = cluster.members[0], node.members[0]
    _kill_and_ask(first, cluster.url("mixed", first, second))


def _kill_and_ask(first: EtcdMember, url: str) -> None:
    with lockfast.connect(url) as client:
        client.lock("orders/42").acquire().release()
        first.kill()
        with pytest.raises(lockfast.StoreMisconfiguredError, match="two clusters"):
            client.lock("orders/43").acquire(timeout=5)
