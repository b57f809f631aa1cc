"""Slots that move while locks are held: MOVED, ASK and TRYAGAIN."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest

import lockfast
from lockfast import aio
from lockfast.core import commands as c
from lockfast.errors import StoreMisconfiguredError, StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.redis.address import Server
from lockfast.stores.redis.cluster.slots import SLOTS, shard_namespaces, slot_of, tag_of
from lockfast.stores.redis.cluster.wire import Redirection, redirection_in
from lockfast.stores.registry import open_store
from tests.cluster.places import PLACEMENT, SHARDS, slot_of_name
from tests.servers.redis_cluster import Node, RedisCluster
from tests.servers.sentinel import wait_until

NAME = "orders/42"
PATIENCE_S = 30.0


@pytest.fixture
def slot(namespace: str) -> int:
    return slot_of_name(namespace, NAME)


@pytest.fixture
def ends(cluster: RedisCluster, slot: int) -> tuple[Node, Node]:
    """Return the node that serves the slot, and another primary."""
    source = cluster.owner(slot)
    return source, next(node for node in cluster.primaries if node is not source)


def test_a_lease_outlives_a_move_of_its_slot(
    cluster: RedisCluster, namespace: str, slot: int, ends: tuple[Node, Node]
) -> None:
    url = cluster.url(namespace, shards=SHARDS)
    with lockfast.connect(url) as holder, lockfast.connect(url) as other:
        held = holder.lock(NAME).acquire()
        assert cluster.move_slot(slot, *ends) == 3
        assert other.lock(NAME).try_acquire() is None, "the claim moved along"
        held.check()
        held.release()
        with other.lock(NAME) as lease:
            assert lease.token > held.token
        with holder.lock(NAME) as lease:
            assert lease.session == held.session


def test_a_task_follows_a_slot_back_and_forth(
    cluster: RedisCluster, namespace: str, slot: int, ends: tuple[Node, Node]
) -> None:
    source, target = ends

    async def story() -> list[int]:
        tokens = []
        async with aio.connect(cluster.url(namespace, shards=SHARDS)) as client:
            for way in ((source, target), (target, source)) * 2:
                async with client.lock(NAME) as lease:
                    tokens.append(lease.token)
                await asyncio.to_thread(cluster.move_slot, slot, *way)
        return tokens

    tokens = asyncio.run(story())
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_nothing_runs_while_the_keys_are_on_two_nodes(
    cluster: RedisCluster, namespace: str, slot: int, ends: tuple[Node, Node], face: str
) -> None:
    """Half a table must not be mistaken for the whole: commands are refused until it is moved."""
    store = open_store(cluster.url(namespace, shards=SHARDS), face)  # type: ignore[arg-type]
    session = PLACEMENT.session_id("a" * 16, "b" * 16, PLACEMENT.shard_of_name("lock", NAME))
    places = (c.Place("lock", NAME, "exclusive"),)

    async def story() -> None:
        wire = store.caller_wire()
        opening = c.Open(session, 60_000, "s")
        assert isinstance(
            await wire.send(c.Enter(session, 1, places, open=opening), 5000), c.Granted
        )

        async def refused() -> None:
            with pytest.raises(StoreUnavailableError, match="being moved"):
                await wire.send(c.Leave(session, 1, places), 1000)

        moving = asyncio.to_thread if face == "asyncio" else None
        halves = itertools.count()

        def halfway(moved: int) -> None:
            next(halves)
            if moving is None:
                run(refused())
            else:
                asyncio.run_coroutine_threadsafe(refused(), loop).result(PATIENCE_S)

        if moving is None:
            cluster.move_slot(slot, *ends, halfway=halfway)
        else:
            loop = asyncio.get_running_loop()
            await moving(cluster.move_slot, slot, *ends, halfway=halfway)
        assert next(halves) == 3
        assert isinstance(await wire.send(c.Look(session, 1), 5000), c.Granted)
        assert await wire.send(c.Leave(session, 1, places), 5000) == c.Done()
        wire.close()

    asyncio.run(story()) if face == "asyncio" else run(story())
    store.close()


def test_a_command_is_asked_of_the_node_that_has_all_keys_already(
    cluster: RedisCluster, namespace: str, slot: int, ends: tuple[Node, Node]
) -> None:
    """Before the move is announced, the old node answers ASK."""
    source, target = ends
    with lockfast.connect(cluster.url(namespace, shards=SHARDS)) as client:
        watch = client.watch()
        hearing = threading.Thread(target=lambda: next(iter(watch)))
        hearing.start()  # so that the shard has a log: all four of its keys
        wait_until(lambda: len(client.sessions()) == SHARDS, "that each shard is watched")
        held = client.lock(NAME).acquire()
        hearing.join(PATIENCE_S)
        asked: list[int] = []

        def halfway(moved: int) -> None:
            if moved == 4:
                before = target.calls().get("asking", 0)
                held.release()
                client.lock(NAME).acquire().release()
                asked.append(target.calls()["asking"] - before)

        cluster.move_slot(slot, source, target, halfway=halfway)
        assert asked[0] >= 3
        watch.close()
        client.lock(NAME).acquire().release()


def test_a_client_with_another_layout_is_refused(cluster: RedisCluster, namespace: str) -> None:
    with lockfast.connect(cluster.url(namespace, shards=8)) as client:
        client.lock("a").acquire().release()
    others = [
        cluster.url(namespace, shards=16),
        cluster.url(namespace, shards=1),
        cluster.url(namespace, shards=8, shard_by="first-segment"),
        f"redis://127.0.0.1:{cluster.owner(slot_of(tag_of(namespace))).port}?namespace={namespace}",
    ]
    for url in others:
        with lockfast.connect(url) as client:
            with pytest.raises(StoreMisconfiguredError, match="shards=8&shard_by=name"):
                client.lock("a").acquire()


def test_a_server_that_is_no_cluster_is_refused() -> None:
    from tests.servers.ports import free_port
    from tests.servers.redis import RedisServer

    with RedisServer(port=free_port()) as server:
        with lockfast.connect(f"redis+cluster://127.0.0.1:{server.port}") as client:
            with pytest.raises(StoreMisconfiguredError, match="not part of a cluster"):
                client.lock("a").acquire()


@pytest.mark.parametrize("shards", [1, 3, 16, 64])
def test_shards_spread_evenly_over_slots(shards: int) -> None:
    names = shard_namespaces("default", shards)
    assert len(set(names)) == shards
    if shards > 1:
        slots = [slot_of(tag_of(name)) for name in names]
        assert [slot * shards // SLOTS for slot in slots] == list(range(shards))
    for nodes in (3, 5, 6):
        per_node = [0] * nodes
        for name in names:
            per_node[slot_of(tag_of(name)) * nodes // SLOTS] += 1
        assert max(per_node) - min(per_node) <= 1


def test_slots_are_counted_as_the_server_counts_them(cluster: RedisCluster) -> None:
    for tag in ("lockfast:default", "lockfast:a:0.1", "ü"):
        found = cluster.primaries[0].call("CLUSTER", "KEYSLOT", f"{{{tag}}}:rows")
        assert found == slot_of(tag)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("MOVED 3999 10.0.0.2:6381", Redirection(Server("10.0.0.2", 6381))),
        ("ASK 3999 10.0.0.2:6381", Redirection(Server("10.0.0.2", 6381), asking=True)),
        ("MOVED 3999 :6381", Redirection(Server("here", 6381))),
        ("MOVED 3999 fd00::1:6381", Redirection(Server("fd00::1", 6381))),
        ("TRYAGAIN Multiple keys request during rehashing of slot", None),
        ("MOVED 3999", None),
        ("MOVED 3999 10.0.0.2:99999", None),
        ("ERR something else", None),
    ],
)
def test_redirections_are_understood(said: str, found: Redirection | None) -> None:
    assert redirection_in(said, Server("here", 1)) == found
