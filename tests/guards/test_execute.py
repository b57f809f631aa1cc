"""`lease.execute_with_fence` on every storage, in both APIs: a holder that comes too late.

The old holder is suspended, loses its lock, and its successor writes. Then the old holder
continues. It may be suspended before the storage compares its token, or after that and before its
write. Each storage is also broken on purpose, to show that the write gets through without the
check.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import redis

import lockfast
from lockfast import aio
from lockfast.errors import LeaseLostError, StaleTokenError, StoreError, UnsupportedError
from lockfast.guards import FileGuard, MemoryGuard, ObjectGuard, SqliteGuard
from lockfast.guards.etcd import put
from tests.guards.databases import LIBRARIES, open_database, rows
from tests.guards.storages import CASES, NAME, Case, Pause, Servers

PATIENCE_S = 60.0
BLOCKED_S = 0.2
"""How long a successor may be blocked by a suspended holder before that continues; no outcome
depends on it."""
_numbers = itertools.count(1)

Face = Literal["blocking", "asyncio"]
Where = Literal["before", "between"]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Case:
    return servers.case(request.param, tmp_path)


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Face:
    given: Face = request.param
    return given


class Late:
    """A storage that suspends its caller: the lease was checked, the token was not."""

    def __init__(self, storage: Any, pause: Pause) -> None:
        self._storage, self._pause = storage, pause
        awaited = asyncio.iscoroutinefunction(storage.execute)
        self.execute: Any = self._execute_async if awaited else self._execute

    def _execute(self, *arguments: Any, **how: bool) -> Any:
        self._pause()
        return self._storage.execute(*arguments, **how)

    async def _execute_async(self, *arguments: Any, **how: bool) -> Any:
        self._pause()
        return await self._storage.execute(*arguments, **how)


class Holder:
    """Acquires the lock and writes its name once; in a thread, with its own client."""

    def __init__(self, case: Case, face: Face, url: str, name: str, pause: Pause, where: Where):
        self._case, self._url, self._name, self._where = case, url, name, where
        self._pauses = [pause]
        self.outcome: StaleTokenError | None = None
        self.done = threading.Event()
        self._thread = threading.Thread(
            target=self._in_thread, args=(self._block if face == "blocking" else self._await,)
        )
        self._thread.start()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _pause_once(self) -> None:
        if self._pauses:
            self._pauses.pop()()

    def _in_thread(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StaleTokenError as error:
            self.outcome = error
        finally:
            self.done.set()

    def _around(self, storage: Any) -> Any:
        return Late(storage, self._pause_once) if self._where == "before" else storage

    def _inside(self) -> Pause:
        return self._pause_once if self._where == "between" else lambda: None

    def _block(self) -> None:
        with lockfast.connect(self._url, ttl=30) as client:
            lease = client.lock(NAME).acquire(timeout=PATIENCE_S)
            with self._case.blocking(self._name, self._inside()) as (storage, operation):
                lease.execute_with_fence(self._around(storage), operation)
            with contextlib.suppress(LeaseLostError):
                lease.release()

    def _await(self) -> None:
        async def work() -> None:
            async with aio.connect(self._url, ttl=30) as client:
                lease = await client.lock(NAME).acquire(timeout=PATIENCE_S)
                async with self._case.aio(self._name, self._inside()) as (storage, operation):
                    await lease.execute_with_fence(self._around(storage), operation)
                with contextlib.suppress(LeaseLostError):
                    await lease.release()

        asyncio.run(work())


def overtake(case: Case, face: Face, where: Where, patience_s: float) -> Holder:
    """Suspend, revoke and overtake the old holder, then let it continue; return it."""
    url = f"memory://overtake-{next(_numbers)}"
    suspended, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        suspended.set()
        assert go_on.wait(PATIENCE_S)

    old = Holder(case, face, url, "old", pause, where)
    try:
        assert suspended.wait(PATIENCE_S)
        with lockfast.connect(url) as admin:
            assert admin.revoke(NAME, reason="it is suspended") == 1
        new = Holder(case, face, url, "new", lambda: None, where)
        new.done.wait(patience_s)
    finally:
        go_on.set()
    old.join()
    new.join()
    assert new.outcome is None
    return old


def test_a_holder_overtaken_before_its_check_is_refused(case: Case, face: Face) -> None:
    old = overtake(case, face, "before", PATIENCE_S)
    assert isinstance(old.outcome, StaleTokenError)
    assert case.value() == "new"


def test_a_holder_overtaken_between_check_and_write_does_not_win(case: Case, face: Face) -> None:
    """Either its successor waits for it, or its write is refused."""
    overtake(case, face, "between", BLOCKED_S)
    assert case.value() == "new"


def test_without_the_check_the_old_holder_overwrites(
    case: Case, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.unchecked(monkeypatch)
    assert overtake(case, face, "before", PATIENCE_S).outcome is None
    assert case.value() == "old"


def test_with_a_check_apart_from_the_write_the_old_holder_overwrites(
    case: Case, face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.torn(monkeypatch)
    overtake(case, face, "between", PATIENCE_S)
    assert case.value() == "old"


def test_an_operation_that_raises_leaves_the_old_value(case: Case) -> None:
    class Broken(Exception):
        pass

    def fail() -> None:
        raise Broken

    with lockfast.connect(f"memory://broken-{next(_numbers)}") as client:
        with client.lock(NAME) as lease:
            with case.blocking("first", lambda: None) as (storage, operation):
                lease.execute_with_fence(storage, operation)
            with case.blocking("second", fail) as (storage, operation):
                with pytest.raises(Broken):
                    lease.execute_with_fence(storage, operation)
            assert case.value() == "first"
            with case.blocking("third", lambda: None) as (storage, operation):
                lease.execute_with_fence(storage, operation)
    assert case.value() == "third"


def test_once_a_token_passes_a_single_time(case: Case) -> None:
    with lockfast.connect(f"memory://once-{next(_numbers)}") as client:
        with client.lock(NAME) as lease:
            with case.blocking("first", lambda: None) as (storage, operation):
                lease.execute_with_fence(storage, operation, once=True)
            with case.blocking("second", lambda: None) as (storage, operation):
                with pytest.raises(StaleTokenError, match="already used"):
                    lease.execute_with_fence(storage, operation, once=True)
    assert case.value() == "first"


def test_an_operation_that_would_not_be_awaited_is_refused(case: Case, face: Face) -> None:
    """The file was replaced by an empty one; elsewhere, nothing was written."""

    async def never(*_: object) -> None:
        pytest.fail("nobody awaits it")

    url = f"memory://awaited-{next(_numbers)}"
    with lockfast.connect(url) as client, client.lock(NAME) as lease:
        with case.blocking("first", lambda: None) as (storage, operation):
            lease.execute_with_fence(storage, operation)
            if face == "blocking":
                with pytest.raises(UnsupportedError, match="is a coroutine function"):
                    lease.execute_with_fence(storage, never)

    async def work() -> None:
        async with aio.connect(url) as client, client.lock(NAME) as lease:
            async with case.aio("second", lambda: None) as (storage, operation):
                if asyncio.iscoroutinefunction(operation):
                    return  # this storage does await it
                with pytest.raises(UnsupportedError, match="is a coroutine function"):
                    await lease.execute_with_fence(storage, never)

    if face == "asyncio":
        asyncio.run(work())
    assert case.value() == "first"


def test_a_storage_that_would_not_be_awaited_is_refused() -> None:
    class Storage:
        async def execute(self, *_: object, **__: bool) -> None:
            pytest.fail("nobody awaits it")

    class Wrapped:
        def execute(self, *arguments: object, **how: bool) -> Any:
            return storage.execute(*arguments, **how)

    storage: Any = Storage()
    wrapped: Any = Wrapped()

    async def work() -> None:
        async with aio.connect("memory://async-storage") as client, client.lock(NAME) as lease:
            with pytest.raises(UnsupportedError, match=r"with Wrapped: its execute\(\) returned"):
                await lease.execute_with_fence(wrapped, lambda: None)

    with lockfast.connect("memory://async-storage") as client, client.lock(NAME) as lease:
        with pytest.raises(UnsupportedError, match=r"with Storage: its execute\(\) returned"):
            lease.execute_with_fence(storage, lambda: None)
    asyncio.run(work())


# ── which token, which name ──────────────────────────────────────────────────────────


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    with lockfast.connect(f"memory://fence-{next(_numbers)}") as made:
        yield made


def test_a_lost_lease_is_told_before_the_storage_is_asked(client: lockfast.Client) -> None:
    lease = client.lock(NAME).acquire()
    client.revoke(NAME, reason="test")
    assert lease.lost.wait(PATIENCE_S)
    with pytest.raises(LeaseLostError):
        lease.execute_with_fence(MemoryGuard(), lambda: pytest.fail("it ran"))


def test_readers_do_not_shut_each_other_out(client: lockfast.Client) -> None:
    """A reader's token is compared but not stored; a writer's is stored, also after an upgrade."""
    guard, rwlock = MemoryGuard(), client.rwlock(NAME)
    with rwlock.read() as first, rwlock.read() as second:
        assert second.execute_with_fence(guard, lambda: "read") == "read"
        assert first.execute_with_fence(guard, lambda: "read") == "read"
    assert guard.floor(NAME) == 0
    with rwlock.update() as lease:
        lease.execute_with_fence(guard, lambda: None)
        assert guard.floor(NAME) == 0
        lease.upgrade()
        lease.execute_with_fence(guard, lambda: None)
        assert guard.floor(NAME) == lease.token


def test_a_reader_replaces_neither_file_nor_object(client: lockfast.Client, tmp_path: Path) -> None:
    with client.rwlock(NAME).read() as lease:
        with pytest.raises(UnsupportedError, match="token of a reader"):
            lease.execute_with_fence(FileGuard(tmp_path / "a"), lambda file: file.write(b""))
        with pytest.raises(UnsupportedError, match="token of a reader"):
            lease.execute_with_fence(ObjectGuard(None, "a"), lambda _: b"")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_lease_needs_a_tree_guard(client: lockfast.Client) -> None:
    with client.tree("warehouse/eu").write() as lease:
        with pytest.raises(UnsupportedError, match="tree=True"):
            lease.execute_with_fence(MemoryGuard(), lambda: None)
        guard = MemoryGuard(tree=True)
        lease.execute_with_fence(guard, lambda: None)
        assert guard.floor("warehouse") == lease.token
    with client.tree("warehouse/eu").read() as reader:
        reader.execute_with_fence(guard, lambda: None)
        assert guard.floor("warehouse/eu") < reader.token


def test_of_several_locks_one_is_named(client: lockfast.Client) -> None:
    guard = MemoryGuard()
    with client.all("a", client.rwlock("b").read()) as lease:
        with pytest.raises(UnsupportedError, match="resource=…"):
            lease.execute_with_fence(guard, lambda: None)
        lease.execute_with_fence(guard, lambda: None, resource="b")
        assert guard.floor("b") == 0
        lease.execute_with_fence(guard, lambda: None, resource="a")
        assert guard.floor("a") == lease.token


def test_permits_cannot_fence_and_terms_can(client: lockfast.Client) -> None:
    guard = MemoryGuard()
    with client.semaphore("api", limit=2) as permit:
        with pytest.raises(UnsupportedError, match="token of a permit"):
            permit.execute_with_fence(guard, lambda: None)
    with client.election("scheduler").campaign("host-7") as term:
        term.execute_with_fence(guard, lambda: None)
        assert guard.floor("scheduler") == term.epoch


# ── what a storage does besides ──────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["sqlite", "postgresql", "sqlalchemy"])
def test_a_transaction_that_is_open_is_not_committed(
    servers: Servers, tmp_path: Path, name: str
) -> None:
    case = servers.case(name, tmp_path)
    with case.blocking("first", lambda: None) as (guard, operation):
        operation(guard._connection)  # begins a transaction
        with pytest.raises(UnsupportedError, match=r"execute\(\) inside a transaction"):
            guard.execute(NAME, 17, operation)
        guard._connection.rollback()
    assert case.value() == ""


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_operation_that_ends_its_transaction_is_refused(tmp_path: Path, library: str) -> None:
    database = open_database(library, tmp_path / "a.db")
    guard = SqliteGuard(database)
    for statement in ("COMMIT", "ROLLBACK"):
        with pytest.raises(UnsupportedError, match="ends its transaction"):
            guard.execute(NAME, 17, lambda _, it=statement: database.execute(it))  # type: ignore[misc]
    assert guard.execute(NAME, 18, lambda opened: rows(opened, "SELECT 1")) == [(1,)]
    database.close()


def test_redis_replies_and_repeats(servers: Servers, tmp_path: Path) -> None:
    """Its floors share a key, so a write to another resource makes it start again."""
    case = servers.case("redis", tmp_path)
    calls: list[int] = []
    with case.blocking("", lambda: None) as (guard, _), case.blocking("", lambda: None) as (two, _):

        def add(pipeline: Any) -> None:
            calls.append(1)
            if len(calls) == 1:
                two.admit("other", 5)
            pipeline.incr("sum")
            pipeline.get("state")

        assert guard.execute(NAME, 17, add) == [1, None]
        assert guard.execute(NAME, 17, add) == [2, None]
        assert len(calls) == 3

        def contended(pipeline: Any) -> None:
            two.admit("other", 5 + len(calls))
            calls.append(1)

        with pytest.raises(StoreError, match="changed 50 times"):
            guard.execute(NAME, 17, contended)
        with pytest.raises(redis.ResponseError, match="not an integer"):
            guard.execute(NAME, 17, lambda pipeline: pipeline.set("state", "x").incr("state"))


def test_etcd_answers_what_the_caller_compares(servers: Servers, tmp_path: Path) -> None:
    case = servers.case("etcd", tmp_path)
    with case.blocking("new", lambda: None) as (guard, operation):
        assert guard.execute(NAME, 17, operation)["succeeded"]

        def never(transaction: dict[str, Any]) -> None:
            key = put("no such key", "")["request_put"]["key"]
            transaction["compare"].append({"key": key, "target": "VERSION", "version": "7"})

        assert not guard.execute(NAME, 18, never).get("succeeded")
        assert guard.floor(NAME) == 17
