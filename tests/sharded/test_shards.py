"""What a client of a sharded store sees: names on different shards, read and watched as one."""

from __future__ import annotations

import itertools
import threading

import pytest

import lockfast
from lockfast.core.placement import Placement
from lockfast.errors import DeadlockError, StoreMisconfiguredError, UnsupportedError
from lockfast.flow.admin import WatchEvent
from tests.sharded.harness import name_in

SHARDS = 4
PLACEMENT = Placement(SHARDS)
PATIENCE_S = 30.0
_numbers = itertools.count(1)


def url_of(**options: str) -> str:
    query = "&".join(f"{name}={value}" for name, value in {"shards": SHARDS, **options}.items())
    return f"sharded+memory://shards-{next(_numbers)}?{query}"


EVERYWHERE = [name_in(PLACEMENT, shard, f"orders/{shard}") for shard in range(SHARDS)]
"""A name on each shard."""


def test_each_shard_has_a_session_of_its_own() -> None:
    """Then the failure of one shard ends no lease on another."""
    with lockfast.connect(url_of()) as client:
        leases = [client.lock(name).acquire() for name in EVERYWHERE]
        sessions = {lease.session for lease in leases}
        assert len(sessions) == SHARDS
        assert {view.session for view in client.sessions()} == sessions
        assert len({session[:8] for session in sessions}) == 1, "they name their client"
        client.revoke(session=leases[0].session, reason="test")
        assert leases[0].lost.wait(PATIENCE_S)
        assert [lease.state for lease in leases[1:]] == ["held"] * (SHARDS - 1)
        for lease in leases[1:]:
            lease.release()


def test_lists_are_merged_in_order_and_in_pages() -> None:
    names = sorted(f"n/{i:04}" for i in range(1300))
    with lockfast.connect(url_of()) as client:
        leases = [client.lock(name).acquire() for name in names]
        assert [info.name for info in client.list("n/")] == names
        assert [info.name for info in client.list("n/00")] == names[:100]
        assert [info.name for info in client.list("m")] == []
        for lease in leases:
            lease.release()


def test_a_watch_hears_every_shard_and_goes_on_where_it_stopped() -> None:
    """Shards have no common order, but each keeps its own."""
    with lockfast.connect(url_of()) as client:
        begun = client.watch()
        heard: list[WatchEvent] = []

        def hear() -> None:
            heard.extend(itertools.islice(begun, 2 * SHARDS))

        first = threading.Thread(target=hear)
        first.start()
        while len(client.sessions()) < SHARDS:
            pass
        for name in EVERYWHERE:
            client.lock(name).acquire().release()
        first.join(PATIENCE_S)
        assert_in_order(heard, 1)
        for name in EVERYWHERE:
            client.lock(name).acquire().release()
        again = client.watch(after=heard[2].position)
        rest = list(itertools.islice(again, 4 * SHARDS - 3))
        assert_in_order([*heard[:3], *rest], 2)
        positions = [event.position for event in rest]
        assert len(set(positions)) == len(positions)


def assert_in_order(events: list[WatchEvent], rounds: int) -> None:
    """Check that every event of every lock was received once, in the order of its shard."""
    for name in EVERYWHERE:
        told = [event.what for event in events if event.name == name]
        assert told == ["granted", "released"] * rounds
    assert len(events) == 2 * SHARDS * rounds


def test_an_election_is_observed_on_its_own_shard_only() -> None:
    with lockfast.connect(url_of()) as client:
        observed = iter(client.election("scheduler").observe())
        assert next(observed) is None
        with client.election("scheduler").campaign(value="me"):
            leader = next(observed)
            assert leader is not None
            assert leader.value == "me"
        assert len(client.sessions()) == 1


@pytest.mark.parametrize("by", ["name", "first-segment"])
def test_what_lies_on_different_shards_is_refused_before_anything_is_sent(by: str) -> None:
    url = url_of(shard_by=by)
    here, there = (name_in(PLACEMENT, shard, f"n{shard}") for shard in (0, 1))
    with lockfast.connect(url) as client:
        with pytest.raises(UnsupportedError, match="on different shards") as refused:
            client.all(here, there).acquire()
        assert "first segment" in str(refused.value)
        assert client.sessions() == []


def test_names_with_the_same_first_segment_can_be_locked_at_once() -> None:
    with lockfast.connect(url_of(shard_by="first-segment")) as client:
        names = [f"orders/{i}" for i in range(20)]
        with client.all(*names) as lease:
            assert lease.token
            assert client.lock("orders/7").try_acquire() is None
        assert len(client.sessions()) == 1


def test_a_tree_lies_on_one_shard_whatever_the_placement() -> None:
    with lockfast.connect(url_of()) as client:
        with client.tree("warehouse/eu/bin-7").write():
            assert client.tree("warehouse").write().try_acquire() is None
            client.tree("warehouse/us").write().acquire().release()
            client.tree("shop/eu").write().acquire().release()


def test_a_deadlock_across_three_shards_is_found_and_broken() -> None:
    """Each client holds on one shard and waits on the next, so no session shows the cycle."""
    url = url_of()
    clients = [lockfast.connect(url, deadlock_after=0.2) for _ in range(3)]
    all_hold = threading.Barrier(3)
    outcomes: list[str] = []

    def work(i: int) -> None:
        with clients[i].lock(EVERYWHERE[i]):
            all_hold.wait(PATIENCE_S)
            try:
                with clients[i].lock(EVERYWHERE[(i + 1) % 3]):
                    outcomes.append("held")
            except DeadlockError:
                outcomes.append("deadlock")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    # Shards share no step: under load, two clients may each break the cycle at another claim.
    assert sorted(outcomes) in (["deadlock", "held", "held"], ["deadlock", "deadlock", "held"])
    for client in clients:
        client.close()


def test_deadlocks_shows_a_cycle_across_shards() -> None:
    url = url_of()
    clients = [lockfast.connect(url, deadlock_after=3600) for _ in range(3)]
    leases = [
        client.lock(name).acquire() for client, name in zip(clients, EVERYWHERE, strict=False)
    ]
    actors = [client.lock(EVERYWHERE[(i + 1) % 3]) for i, client in enumerate(clients)]

    def wait(i: int) -> None:
        leases[i].adopt()
        actors[i].acquire(timeout=PATIENCE_S).release()
        leases[i].release()

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while not (found := clients[0].deadlocks()):
        pass
    (cycle,) = found
    assert len(cycle.actors) == 3
    leases[0].release()
    for thread in threads[1:]:
        thread.join(PATIENCE_S)
    threads[0].join(PATIENCE_S)
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    "options", ["shards=0", "shards=65", "shards=x", "shards=٣", "shard_by=kind", "nodes=3"]
)
def test_a_placement_that_makes_no_sense_is_refused(options: str) -> None:
    with pytest.raises(StoreMisconfiguredError):
        lockfast.connect(f"sharded+memory://x?{options}")
