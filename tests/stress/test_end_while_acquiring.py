"""End a session while many threads or tasks of its client acquire: no claim stays in the store.

Runs on memory, SQLite, and one server each of Redis and etcd.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
import lockfast.aio
from tests.conformance.stores import url_of
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster
from tests.servers.redis import RedisServer, binaries

WORKERS = 8
ROUNDS = 12
TTL = 600.0
"""Long enough that a claim left in the store does not expire during the test."""


@pytest.fixture(params=["memory", "sqlite", "redis", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "redis":
        with RedisServer(next(iter(binaries().values()))) as server:
            yield server.url()
    elif request.param == "etcd":
        with EtcdCluster(1) as cluster:
            yield cluster.url()
    else:
        yield url_of(request.param, tmp_path)


def hammer(client: lockfast.Client, number: int, started: threading.Barrier) -> None:
    """Acquire and release shared and own locks until the client or its session has ended."""
    started.wait(30)
    try:
        while True:
            with client.lock("shared"), client.lock(f"own/{number}"):
                pass
            client.lock("shared").try_acquire()
    except lockfast.LockfastError:
        pass  # the client was closed, or its session was revoked


@pytest.mark.parametrize("how", ["closed", "revoked"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_threads(url: str, how: str) -> None:
    for _ in range(ROUNDS):
        admin = lockfast.connect(url, ttl=TTL)
        client = lockfast.connect(url, ttl=TTL)
        session = client.lock("warm-up").acquire()
        started = threading.Barrier(WORKERS + 1)
        workers = [
            threading.Thread(target=hammer, args=(client, number, started))
            for number in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        started.wait(30)
        session_id = session.session
        session.release()
        if how == "revoked":
            admin.revoke(session=session_id, reason="enough")
        client.close()
        for worker in workers:
            worker.join(30)
            assert not worker.is_alive()
        client_is_gone(admin, session_id)
        admin.close()


def client_is_gone(admin: lockfast.Client, session: str) -> None:
    """Check that no lock is in use, and that only the admin's own session lives."""
    own = admin.lock("probe").acquire()

    def left() -> list[str]:
        return [info.name for info in admin.list() if info.name != "probe"]

    until(lambda: not left(), "no lock is in use")

    def alive() -> list[str]:
        return [
            info.session
            for info in admin.sessions()
            if info.session != own.session and (not info.ended or info.claims)
        ]

    until(lambda: not alive(), "no session lives or has claims")
    for name in ("shared", *(f"own/{number}" for number in range(WORKERS))):
        admin.lock(name).acquire(timeout=30).release()
    own.release()


@pytest.mark.parametrize("how", ["closed", "revoked"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tasks(url: str, how: str) -> None:
    async def work(client: lockfast.aio.Client, number: int) -> None:
        try:
            while True:
                async with client.lock("shared"), client.lock(f"own/{number}"):
                    await asyncio.sleep(0)  # memory never makes a task wait
        except lockfast.LockfastError:
            pass

    async def story(admin: lockfast.Client) -> None:
        client = lockfast.aio.connect(url, ttl=TTL)
        first = await client.lock("warm-up").acquire()
        async with asyncio.TaskGroup() as group:
            for number in range(WORKERS):
                group.create_task(work(client, number))
            await first.release()
            if how == "revoked":
                await asyncio.to_thread(admin.revoke, session=first.session, reason="enough")
            await client.close()
        await asyncio.to_thread(client_is_gone, admin, first.session)

    for _ in range(ROUNDS):
        with lockfast.connect(url, ttl=TTL) as admin:
            asyncio.run(story(admin))
