"""Known traps of kazoo and ZooKeeper, on a real server behind a proxy that breaks connections.

The tests use long TTLs where a lost wake or a missed event would only be repaired by a keep-alive:
then the test would wait in vain.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

import lockfast
import lockfast.aio
from lockfast import LeaseState
from lockfast import events as e
from tests.observe.test_events import Seen
from tests.processes.crew import until
from tests.servers.proxy import Proxy
from tests.servers.zookeeper import ZooKeeperEnsemble

PATIENCE_S = 60.0
LONG_TTL = 600.0
"""Its keep-alives are further apart than any test is patient."""


@pytest.fixture
def proxy(node: ZooKeeperEnsemble) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", node.members[0].port)) as started:
        yield started


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The events of all clients."""
    observer = Seen()
    with lockfast.observe(observer) as subscription:
        observer.subscription = subscription
        yield observer


def behind(proxy: Proxy, namespace: str) -> str:
    return f"zookeeper://{proxy.address}?namespace={namespace}"


def suspend(proxy: Proxy) -> None:
    """Break all connections; kazoo stays SUSPENDED until `resume`."""
    proxy.refuse()
    proxy.reset()


def resume(proxy: Proxy) -> None:
    proxy.refuse(refusing=False)


def acquired_by(
    client: lockfast.Client, name: str
) -> tuple[threading.Thread, list[lockfast.Lease]]:
    """Start a thread that waits for a lock; return it, and where the lease will be."""
    granted: list[lockfast.Lease] = []
    lock = client.lock(name)
    thread = threading.Thread(target=lambda: granted.append(lock.acquire(timeout=PATIENCE_S)))
    thread.start()
    return thread, granted


def waits(client: lockfast.Client, name: str, count: int = 1) -> bool:
    return client.inspect(name).waiting_count == count


def test_a_connection_suspended_past_its_session_blocks_no_call(proxy: Proxy) -> None:
    """Every call ends by its own timeout, and the lease by its own deadline."""
    client = lockfast.connect(behind(proxy, "suspended"), ttl=2)
    lease = client.lock("a").acquire()
    suspend(proxy)
    with pytest.raises(lockfast.LockfastError):
        client.lock("b").acquire(timeout=0.5)
    assert lease.lost.wait(PATIENCE_S)
    with pytest.raises(lockfast.LeaseLostError):
        lease.check()
    with pytest.raises(lockfast.LockfastError):
        client.lock("c").try_acquire()
    client.close()


def test_a_suspended_connection_makes_leases_uncertain_at_once(proxy: Proxy, seen: Seen) -> None:
    """Not only when the next keep-alive fails; after a reconnection they are held again."""
    with lockfast.connect(behind(proxy, "uncertain"), ttl=LONG_TTL) as client:
        lease = client.lock("a").acquire()
        assert lease.state is LeaseState.HELD
        suspend(proxy)
        (uncertain,) = seen.wait_for(e.LeaseUncertain)
        assert uncertain.token == lease.token
        assert lease.state is LeaseState.UNCERTAIN
        lease.check()
        resume(proxy)
        until(lambda: lease.state is LeaseState.HELD, "it is confirmed", within=PATIENCE_S)
        lease.release()


def test_a_session_that_zookeeper_ended_makes_leases_lost_at_once(
    proxy: Proxy, node: ZooKeeperEnsemble, seen: Seen
) -> None:
    """The server ends the session long before the lease's own deadline."""
    with lockfast.connect(behind(proxy, "ended"), ttl=LONG_TTL) as client:
        lease = client.lock("a").acquire()
        end_zookeeper_session_of(client, node)
        assert lease.lost.wait(PATIENCE_S)
        assert [lost.token for lost in seen.wait_for(e.LeaseLost)] == [lease.token]
        with client.lock("a") as again:
            assert again.token > lease.token


def end_zookeeper_session_of(client: lockfast.Client, node: ZooKeeperEnsemble) -> None:
    """Take over the ZooKeeper session of a client's only session, and close it."""
    store: Any = client._core.store
    (own,) = [own for own in store.context.own.all() if own.link is not None]
    other: Any = KazooClient(node.hosts(), client_id=own.link._client.client_id)
    other.start_async().wait(PATIENCE_S)
    other.stop()
    other.close()


def test_after_a_reconnection_a_claim_is_verified_before_it_is_held(
    proxy: Proxy, node: ZooKeeperEnsemble
) -> None:
    """A lease revoked while the connection was suspended is never reported as held again."""
    with (
        lockfast.connect(behind(proxy, "verified"), ttl=LONG_TTL) as client,
        lockfast.connect(node.url("verified"), ttl=LONG_TTL) as admin,
    ):
        lease = client.lock("a").acquire()
        suspend(proxy)
        until(lambda: lease.state is LeaseState.UNCERTAIN, "it is suspended", within=PATIENCE_S)
        admin.revoke("a", reason="maintenance")
        successor = admin.lock("a").acquire(timeout=PATIENCE_S)
        states = {lease.state}
        resume(proxy)

        def is_lost() -> bool:
            states.add(lease.state)
            return lease.lost.is_set()

        until(is_lost, "it is lost", within=PATIENCE_S)
        assert LeaseState.HELD not in states
        successor.check()
        successor.release()


def test_a_claim_given_up_while_suspended_blocks_nobody(
    proxy: Proxy, node: ZooKeeperEnsemble
) -> None:
    """Its node survives the time-out of its acquire (kazoo #732, #760) and is removed later."""
    with (
        lockfast.connect(behind(proxy, "left-behind"), ttl=LONG_TTL) as suspended,
        lockfast.connect(node.url("left-behind"), ttl=LONG_TTL) as client,
    ):
        held = client.lock("a").acquire()
        errors: list[BaseException] = []

        def give_up() -> None:
            try:
                suspended.lock("a").acquire(timeout=2)
            except lockfast.LockfastError as error:
                errors.append(error)

        thread = threading.Thread(target=give_up)
        thread.start()
        until(lambda: waits(client, "a"), "it waits", within=PATIENCE_S)
        suspend(proxy)
        thread.join(PATIENCE_S)
        assert len(errors) == 1
        resume(proxy)
        held.release()
        client.lock("a").acquire(timeout=PATIENCE_S).release()


def test_a_claim_of_a_suspended_session_blocks_nobody_for_long(
    proxy: Proxy, node: ZooKeeperEnsemble
) -> None:
    """It is granted the lock while nobody can tell its client, and passed over when it expires."""
    with (
        lockfast.connect(behind(proxy, "passed-over"), ttl=2) as suspended,
        lockfast.connect(node.url("passed-over"), ttl=LONG_TTL) as client,
    ):
        held = client.lock("a").acquire()
        thread, granted = acquired_by(suspended, "a")
        until(lambda: waits(client, "a"), "it waits", within=PATIENCE_S)
        suspend(proxy)
        held.release()
        successor = client.lock("a").acquire(timeout=PATIENCE_S)
        assert not granted
        resume(proxy)
        successor.release()
        thread.join(PATIENCE_S)
        assert granted[0].token > successor.token
        granted[0].release()


def test_no_two_spellings_are_one_lock(node: ZooKeeperEnsemble) -> None:
    """ZooKeeper's paths have separators and escapes of their own."""
    names = ("a/b", "a%2Fb", "a%252Fb", "a.b", "a:b", "lock:a", "a b", "ä")
    with lockfast.connect(node.url("spellings"), ttl=30) as client:
        for name in ("a//b", "/a", "a/", "a/../b", "."):
            with pytest.raises(lockfast.InvalidNameError):
                client.lock(name)
        leases = [client.lock(name).try_acquire() for name in names]
        assert all(lease is not None for lease in leases)
        assert sorted(view.name for view in client.list("")) == sorted(names)


def test_no_watch_is_lost_while_it_is_set_again(node: ZooKeeperEnsemble) -> None:
    """The bell of one session rings for many claims in quick succession."""
    count = 40
    with (
        lockfast.connect(node.url("watches"), ttl=LONG_TTL) as holder,
        lockfast.connect(node.url("watches"), ttl=LONG_TTL) as waiter,
    ):
        held = [holder.lock(f"lock {i}").acquire() for i in range(count)]
        waiting = [acquired_by(waiter, f"lock {i}") for i in range(count)]
        names = [f"lock {i}" for i in range(count)]
        until(lambda: all(waits(holder, name) for name in names), "all wait", within=PATIENCE_S)
        for lease in held:
            lease.release()
        for thread, granted in waiting:
            thread.join(PATIENCE_S)
            (lease,) = granted
            lease.check()
            lease.release()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_connection_alone(node: ZooKeeperEnsemble) -> None:
    with lockfast.connect(node.url("fork"), ttl=2) as client:
        lease = client.lock("a").acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                inherited_is_void = lease.lost.is_set()
                own = client.lock("b").acquire(timeout=PATIENCE_S)
                own.release()
                client.close()
                code = 0 if inherited_is_void else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        deadline = lease.deadline
        until(lambda: lease.deadline > deadline, "it is renewed", within=PATIENCE_S)
        lease.check()
        lease.release()


def test_a_read_only_server_is_refused() -> None:
    """A member without a majority would answer reads, and grant nothing."""
    jvm = ("-Dreadonlymode.enabled=true",)
    with ZooKeeperEnsemble(3, jvm=jvm) as ensemble:
        alone, *others = ensemble.members
        for member in others:
            member.kill()
        until(lambda: alone.ask("isro").strip() == "ro", "it serves reads", within=PATIENCE_S)
        with (
            lockfast.connect(ensemble.url("reads", alone), ttl=10) as client,
            pytest.raises(lockfast.StoreUnavailableError),
        ):
            client.lock("a").acquire(timeout=3)


def test_asyncio_waits_without_a_thread_per_call(node: ZooKeeperEnsemble) -> None:
    count = 40

    async def contend() -> int:
        async with lockfast.aio.connect(node.url("callbacks"), ttl=30) as client:
            held = await client.lock("a").acquire()
            await client.inspect("a")  # opens the link for commands of no session
            before = threading.active_count()

            async def take() -> None:
                async with client.lock("a"):
                    pass

            tasks = [asyncio.create_task(take()) for _ in range(count)]
            give_up_s = time.monotonic() + PATIENCE_S
            while (await client.inspect("a")).waiting_count < count:
                assert time.monotonic() < give_up_s
                await asyncio.sleep(0.02)
            more = threading.active_count() - before
            await held.release()
            await asyncio.gather(*tasks)
            return more

    # A link that is opened again has three threads of its own; a thread per call would be forty.
    assert asyncio.run(contend()) < 10
