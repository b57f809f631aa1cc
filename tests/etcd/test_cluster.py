"""Three members: any one may go, and with two gone everything waits and recovers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockfast
from tests.etcd import roles
from tests.processes.crew import Child, Crew, crew_in, until
from tests.servers.etcd import EtcdCluster, EtcdMember

TTL = 3.0
PROCESSES = 8
GRANTS = 24
"""As many are to be seen before the harm and after it."""


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    """A cluster of its own: these tests do it harm."""
    with EtcdCluster(3) as started:
        yield started


@pytest.fixture
def crew(tmp_path: Path, cluster: EtcdCluster) -> Iterator[Crew]:
    for crew in crew_in(tmp_path):
        crew.url = cluster.url("crew")
        yield crew


class Contest:
    """Processes that compete, and what they say."""

    def __init__(self, crew: Crew) -> None:
        self.children = [
            crew.start(roles.compete, "orders/42", TTL, str(crew.directory))
            for _ in range(PROCESSES)
        ]
        for child in self.children:
            child.hears("ready")
        self.tokens: list[int] = []

    def see(self, grants: int, everybody: bool = False) -> None:
        """Until so many grants were seen, and one at least of each process."""
        waiting = set(self.children) if everybody else set()
        seen = 0

        def enough() -> bool:
            nonlocal seen
            for child in self.children:
                while child.is_talking(0.0):
                    self._hear(child)
                    waiting.discard(child)
                    seen += 1
            return seen >= grants and not waiting

        until(enough, f"{grants} grants, of everybody", within=3 * TTL + 20)

    def _hear(self, child: Child) -> None:
        word, token = child.hears_anything().split()
        assert word == "held", f"{word} at token {token}"
        self.tokens.append(int(token))

    def end(self) -> None:
        for child in self.children:
            child.tell("stop")
        for child in self.children:
            while (line := child.hears_anything()) != "done":
                word, token = line.split()
                assert word == "held", line
                self.tokens.append(int(token))
        assert len(set(self.tokens)) == len(self.tokens), "no token is given twice"


def kill_the_leader(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    cluster.leader().kill()
    return contextlib.nullcontext()


def stop_a_follower(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    return cluster.followers()[0].stopped()


def kill_the_endpoint(cluster: EtcdCluster) -> contextlib.AbstractContextManager[None]:
    """The member that all clients speak to: the first in the URL."""
    cluster.members[0].kill()
    return contextlib.nullcontext()


@pytest.mark.parametrize("harm", [kill_the_leader, stop_a_follower, kill_the_endpoint])
def test_one_member_less_and_eight_processes_go_on(
    crew: Crew,
    cluster: EtcdCluster,
    harm: Callable[[EtcdCluster], contextlib.AbstractContextManager[None]],
) -> None:
    """No overlap, no token twice, and everybody is granted again."""
    if harm is not kill_the_endpoint:
        # Speak to the one that is harmed, so that it matters.
        harmed = cluster.leader() if harm is kill_the_leader else cluster.followers()[0]
        others = [member for member in cluster.members if member is not harmed]
        crew.url = cluster.url("crew", harmed, *others)
    contest = Contest(crew)
    contest.see(GRANTS)
    with harm(cluster):
        before = len(contest.tokens)
        contest.see(GRANTS, everybody=True)
        contest.end()
    assert max(contest.tokens[:before]) < max(contest.tokens[before:]), "tokens go on rising"


def two_stopped(cluster: EtcdCluster) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for member in cluster.members[:2]:
        stack.enter_context(member.stopped())
    return stack


def test_without_a_majority_nothing_is_granted_and_holders_are_told(
    crew: Crew, cluster: EtcdCluster
) -> None:
    """Acquires fail by their timeout, holders are told by their deadline, then all recovers."""
    holder = crew.start(roles.hold_until_lost, "orders/42", TTL)
    (token,) = holder.hears("held")
    client = crew.client(ttl=TTL, connect_timeout=2.0)
    client.lock("warm-up").acquire().release()
    with two_stopped(cluster):
        with pytest.raises((lockfast.StoreUnavailableError, lockfast.OutcomeUnknownError)):
            client.lock("free").acquire(timeout=1.5)
        assert holder.hears_anything() == "lost"
    lease = client.lock("orders/42").acquire(timeout=30)
    assert lease.token > int(token)
    lease.release()


def test_a_leader_change_starts_leases_anew_and_ends_none(cluster: EtcdCluster) -> None:
    """What is held stays held, and a dead holder's lock comes free a little later."""
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
