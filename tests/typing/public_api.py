"""What type checkers see of the public API; `./dev check` runs them on this file."""

from __future__ import annotations

import sqlite3
from typing import IO, TYPE_CHECKING, assert_type

import lockfast
import lockfast.aio
from lockfast.flow.admin import DeadlockInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.guards import AsyncObjectGuard, FileGuard, MemoryGuard, ObjectGuard, SqliteGuard

if TYPE_CHECKING:

    def locks(client: lockfast.Client) -> None:
        lock = client.lock("orders/42", priority=5)
        assert_type(lock.acquire(timeout=5), lockfast.Lease)
        assert_type(lock.try_acquire(), lockfast.Lease | None)
        with lock as lease:
            assert_type(lease, lockfast.Lease)
            assert_type(lease.token, int)
            assert_type(lease.deadline, float)
            assert_type(lease.state, lockfast.LeaseState)
            assert_type(lease.lost, lockfast.Lost)
            assert_type(lease.lost.wait(1), bool)
            lease.extend(5)
        assert_type(client.lock("a", timeout=5, renew=False).locked(), bool)
        lock.acquire(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with client.rwlock("catalogue").read() as lease, client.tree("a/b").write() as other:
            assert_type(lease, lockfast.Lease)
            assert_type(other, lockfast.Lease)
        with client.all("a", "b") as lease:
            assert_type(lease, lockfast.Lease)

    def fenced(lease: lockfast.Lease, database: sqlite3.Connection, store: object) -> None:
        def paid(database: sqlite3.Connection) -> int:
            return database.execute("UPDATE orders SET state = 'paid'").rowcount

        assert_type(lease.execute_with_fence(SqliteGuard(database), paid), int)
        assert_type(lease.execute_with_fence(MemoryGuard(), lambda: "done"), str)
        assert_type(lease.execute_with_fence(ObjectGuard(store, "a"), lambda _: b"new"), bytes)

        def written(file: IO[bytes]) -> int:
            return file.write(b"")

        assert_type(lease.execute_with_fence(FileGuard("a"), written), int)

    async def fenced_in_tasks(lease: lockfast.aio.Lease, store: object) -> None:
        guard = AsyncObjectGuard(store, "a")
        assert_type(await lease.execute_with_fence(guard, lambda _: b"new"), bytes)
        assert_type(await lease.execute_with_fence(MemoryGuard(), lambda: "done"), str)

    def looking(client: lockfast.Client) -> None:
        assert_type(client.inspect("a"), LockInfo)
        assert_type(client.list("a/"), list[LockInfo])
        assert_type(client.sessions(), list[SessionInfo])
        assert_type(client.deadlocks(), list[DeadlockInfo])
        assert_type(client.revoke("a", reason="x"), int)
        assert_type(client.watch("a/"), lockfast.Watch)
        assert_type(client.election("a").observe(), lockfast.Observation)
        assert_type(client.party("a").watch(), lockfast.Changes)
        for event in client.watch("a/"):
            assert_type(event, WatchEvent)

    def decorators(client: lockfast.Client) -> None:
        @client.lock("report:{day}")
        def build(day: str) -> int:
            return len(day)

        @client.once("nightly", at_least=300, at_most=3600)
        def nightly(count: int) -> str:
            return "x" * count

        assert_type(build("monday"), int)
        assert_type(nightly(1), str | None)

    async def awaited(client: lockfast.aio.Client) -> None:
        lock = client.lock("orders/42")
        acquiring: lockfast.aio.Acquiring[lockfast.aio.Lease] = lock.acquire(timeout=5)
        assert_type(await acquiring, lockfast.aio.Lease)
        async with lock.acquire(timeout=5) as lease:
            assert_type(lease, lockfast.aio.Lease)
        async with client.semaphore("a", 2).acquire(permits=2) as permit:
            assert_type(permit, lockfast.aio.Permit)
        async with client.election("a").campaign("me") as term:
            assert_type(term, lockfast.aio.Term)
        assert_type(await lock.locked(), bool)
        await lease.extend(5)
        assert_type(await lock.try_acquire(), lockfast.aio.Lease | None)
        async with lock as lease:
            assert_type(lease.token, int)
            assert_type(await lease.lost.wait(1), bool)
        assert_type(await client.inspect("a"), LockInfo)

        @client.once("nightly", at_least=300, at_most=3600)
        async def nightly(count: int) -> str:
            return "x" * count

        assert_type(await nightly(1), str | None)
