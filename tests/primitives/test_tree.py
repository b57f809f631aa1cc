"""Tree locks: a node with everything below it, and intentions on its ancestors."""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from tests.primitives.world import World


async def free(lock: Any) -> bool:
    lease = await lock.try_acquire()
    if lease is not None:
        await lease.release()
    return lease is not None


async def test_siblings_do_not_wait_for_each_other(world: World) -> None:
    one, two = world.clients(2)
    async with one.tree("shop/eu/bin-7").write(), two.tree("shop/eu/bin-8").write():
        async with two.tree("shop/us").write():
            pass


async def test_a_writer_above_waits_for_readers_below_and_the_other_way_round(
    world: World,
) -> None:
    one, two = world.clients(2)
    async with one.tree("a/b/c").read():
        for above in ("a", "a/b", "a/b/c"):
            assert not await free(two.tree(above).write())
        assert await free(two.tree("a/b").read())
        assert await free(two.tree("a/b/c/d").read())
        assert await free(two.tree("a/x").write())
    async with one.tree("a/b").write():
        for near in ("a", "a/b", "a/b/c", "a/b/c/d"):
            assert not await free(two.tree(near).read())
        assert await free(two.tree("a/bb").write()), "not below a/b, though it begins so"
    async with one.tree("a/b").read():
        assert not await free(two.tree("a/b/c").write())
        assert await free(two.tree("a/c").write())


async def test_intentions_on_the_ancestors_in_one_step(world: World) -> None:
    client = world.client()
    async with client.tree("a/b/c").write():
        nodes = {info.name: info.holders[0] for info in await client.list(kind="tree")}
    assert {name: node.mode for name, node in nodes.items()} == {
        "a": "intent_exclusive",
        "a/b": "intent_exclusive",
        "a/b/c": "exclusive",
    }
    assert len({node.token for node in nodes.values()}) == 1
    assert await client.list(kind="tree") == []


async def test_a_lease_is_named_by_its_node(world: World) -> None:
    client, other = world.clients(2)
    async with client.tree("a/b/c").write() as lease:
        assert lease.name == "a/b/c"
        with pytest.raises(lockfast.AcquireTimeoutError) as caught:
            await other.tree("a/b/c").read().acquire(timeout=0.01)
        assert caught.value.name == "a/b/c"


async def test_siblings_wait_while_a_writer_above_is_in_the_queue(world: World) -> None:
    """Otherwise a stream of writers below would starve the writer above."""
    one, two, three = world.clients(3)
    order: list[str] = []

    async def write(client: Any, name: str) -> None:
        async with client.tree(name).write():
            order.append(name)

    first = await one.tree("a/b").write().acquire()
    (above,) = await world.queue(one, "a", [write(two, "a")], "tree")
    assert not await free(three.tree("a/c").write())
    below = world.start(write(three, "a/c"))
    await world.until_queued(one, "a", 2, "tree")
    await first.release()
    await above.result()
    await below.result()
    assert order == ["a", "a/c"]


async def test_nested_tree_locks_of_one_actor_are_found_at_once(world: World) -> None:
    client = world.client(deadlock_after=60)
    async with client.tree("a/b").write() as held:
        for name, mode in (("a", "read"), ("a", "write"), ("a/b/c", "read"), ("a/b", "read")):
            with pytest.raises(lockfast.DeadlockError) as caught:
                await getattr(client.tree(name), mode)().acquire()
            assert "'a/b'" in str(caught.value)
            assert str(held.token) in str(caught.value)
        async with client.tree("a/c").write():
            pass
    async with client.tree("a").read(), client.tree("a/b").read():
        with pytest.raises(lockfast.DeadlockError):
            await client.tree("a/b/c").write().acquire()


async def test_a_tree_does_not_see_a_lock_of_its_name(world: World) -> None:
    one, two = world.clients(2)
    async with one.lock("a/b"), two.tree("a").write():
        pass


async def test_a_timeout_gives_back_every_intention(world: World) -> None:
    one, two = world.clients(2)
    async with one.tree("a/b").write():
        with pytest.raises(lockfast.AcquireTimeoutError):
            await two.tree("a/b/c").write().acquire(timeout=0.05)
        await world.until_queued(one, "a/b", 0, "tree")
    assert await one.list(kind="tree") == []


async def test_a_hundred_levels(world: World) -> None:
    client = world.client()
    name = "/".join(["n"] * 100)
    async with client.tree(name).write():
        assert not await free(client.tree("n").read())
        assert len(await client.list(kind="tree")) == 100
