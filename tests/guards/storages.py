"""Every storage that a lease can write to with `execute_with_fence`, and ways to break each.

A `Case` opens storages on one shared value. `pause` is called once per attempt, at the moment that
matters: the token has been compared and nothing is written yet. A case can be *unchecked* (nobody
compares tokens) or *torn* (the comparison and the write are two steps).
"""

from __future__ import annotations

import contextlib
import sqlite3
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import psycopg
import pytest
import redis
import redis.asyncio
import sqlalchemy as sa
from kazoo.client import KazooClient
from kazoo.protocol.serialization import CheckVersion, SetData

from lockfast.guards import (
    AsyncObjectGuard,
    AsyncPostgresGuard,
    AsyncRedisGuard,
    EtcdGuard,
    FileGuard,
    MemoryGuard,
    ObjectGuard,
    PostgresGuard,
    SqliteGuard,
    ZooKeeperGuard,
)
from lockfast.guards import etcd as etcd_guard
from lockfast.guards.redis import RedisGuard
from lockfast.stores.postgresql.schema import guards
from tests.servers.etcd import EtcdCluster
from tests.servers.postgresql import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import S3Server
from tests.servers.zookeeper import ZooKeeperEnsemble

NAME = "orders/42"
Pause = Callable[[], None]


class Attempt(NamedTuple):
    """A storage and an operation that writes to it."""

    storage: Any
    operation: Callable[..., Any]


class Case:
    """One storage. `torn()` makes the comparison a separate step until the end of the test."""

    module: str
    """The module in which `judge` is replaced so that no tokens are compared."""

    def blocking(self, value: str, pause: Pause) -> contextlib.AbstractContextManager[Attempt]:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def aio(self, value: str, pause: Pause) -> AsyncIterator[Attempt]:
        """Return a storage for asyncio; a blocking guard is used unchanged, in a thread."""
        with self.blocking(value, pause) as attempt:
            yield attempt

    def value(self) -> str:
        raise NotImplementedError

    def unchecked(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(f"lockfast.guards.{self.module}.judge", lambda admission, floor: None)

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        raise NotImplementedError


class Memory(Case):
    module = "memory"

    def __init__(self) -> None:
        self.guard = MemoryGuard()
        self.state = ""

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        def write() -> None:
            pause()
            self.state = value

        yield Attempt(self.guard, write)

    def value(self) -> str:
        return self.state

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        self.guard._mutex = contextlib.nullcontext()  # type: ignore[assignment]


class Sqlite(Case):
    module = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "orders.db"
        with contextlib.closing(sqlite3.connect(self.path)) as database, database:
            database.execute("CREATE TABLE orders (state TEXT)")
            database.execute("INSERT INTO orders VALUES ('')")

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        def write(database: sqlite3.Connection) -> None:
            pause()
            database.execute("UPDATE orders SET state = ?", (value,))

        # asyncio uses it in a worker thread.
        opened = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        with contextlib.closing(opened):
            yield Attempt(SqliteGuard(opened), write)

    def value(self) -> str:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            return str(database.execute("SELECT state FROM orders").fetchone()[0])

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        def admit_alone(guard: Any, *arguments: Any, **how: bool) -> None:
            intact(guard, *arguments, **how)
            guard._connection.execute("COMMIT")
            guard._connection.execute("BEGIN")

        intact: Any = SqliteGuard.admit
        patch.setattr(SqliteGuard, "admit", admit_alone)


class Postgres(Case):
    module = "postgresql"

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        server.run("DROP SCHEMA IF EXISTS fences CASCADE")
        server.run(guards("fences"))
        server.run("CREATE TABLE fences.orders (state text)")
        server.run("INSERT INTO fences.orders VALUES ('')")

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        def write(connection: psycopg.Connection[Any]) -> None:
            pause()
            connection.execute("UPDATE fences.orders SET state = %s", (value,))

        with psycopg.connect(self.server.conninfo()) as connection:
            yield Attempt(PostgresGuard(connection, schema="fences"), write)

    @contextlib.asynccontextmanager
    async def aio(self, value: str, pause: Pause) -> AsyncIterator[Attempt]:
        async def write(connection: psycopg.AsyncConnection[Any]) -> None:
            pause()
            await connection.execute("UPDATE fences.orders SET state = %s", (value,))

        async with await psycopg.AsyncConnection.connect(self.server.conninfo()) as connection:
            yield Attempt(AsyncPostgresGuard(connection, schema="fences"), write)

    def value(self) -> str:
        return str(self.server.run("SELECT state FROM fences.orders")[0][0])

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        """Compare on a separate connection, which commits immediately."""

        def admit_elsewhere(guard: Any, *arguments: Any, **how: bool) -> None:
            with psycopg.connect(self.server.conninfo()) as other:
                intact(PostgresGuard(other, schema="fences"), *arguments, **how)

        async def admit_elsewhere_async(guard: Any, *arguments: Any, **how: bool) -> None:
            admit_elsewhere(guard, *arguments, **how)

        intact: Any = PostgresGuard.admit
        patch.setattr(PostgresGuard, "admit", admit_elsewhere)
        patch.setattr(AsyncPostgresGuard, "admit", admit_elsewhere_async)


class SqlAlchemy(Postgres):
    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        from sqlalchemy.orm import Session

        def write(session: Session) -> None:
            pause()
            session.execute(sa.text("UPDATE fences.orders SET state = :state"), {"state": value})

        url = f"postgresql+psycopg://postgres@127.0.0.1:{self.server.port}/postgres"
        engine = sa.create_engine(url)
        try:
            with Session(engine) as session:
                yield Attempt(PostgresGuard(session, schema="fences"), write)
        finally:
            engine.dispose()

    @contextlib.asynccontextmanager
    async def aio(self, value: str, pause: Pause) -> AsyncIterator[Attempt]:
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        async def write(session: AsyncSession) -> None:
            pause()
            await session.execute(
                sa.text("UPDATE fences.orders SET state = :state"), {"state": value}
            )

        url = f"postgresql+psycopg://postgres@127.0.0.1:{self.server.port}/postgres"
        engine = create_async_engine(url)
        try:
            async with AsyncSession(engine) as session:
                yield Attempt(AsyncPostgresGuard(session, schema="fences"), write)
        finally:
            await engine.dispose()


class Redis(Case):
    module = "redis"

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            client.flushdb()

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        def write(pipeline: Any) -> None:
            pause()
            pipeline.set("state", value)

        with redis.Redis(unix_socket_path=str(self.server.socket)) as client:
            yield Attempt(RedisGuard(client), write)

    @contextlib.asynccontextmanager
    async def aio(self, value: str, pause: Pause) -> AsyncIterator[Attempt]:
        def write(pipeline: Any) -> None:
            pause()
            pipeline.set("state", value)

        async with redis.asyncio.Redis(unix_socket_path=str(self.server.socket)) as client:
            yield Attempt(AsyncRedisGuard(client), write)

    def value(self) -> str:
        with redis.Redis(unix_socket_path=str(self.server.socket)) as client:
            found: Any = client.get("state")
            return found.decode() if found is not None else ""

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        """Watch another key than that of the floors."""
        for pipeline in (redis.client.Pipeline, redis.asyncio.client.Pipeline):
            watch: Any = pipeline.watch
            patch.setattr(pipeline, "watch", lambda self, *_, watch=watch: watch(self, "elsewhere"))


class Etcd(Case):
    module = "etcd"

    def __init__(self, cluster: EtcdCluster, number: int) -> None:
        self.send = etcd_guard.gateway(f"http://127.0.0.1:{cluster.members[0].port}")
        self.number = number
        self.is_torn = False

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        write = etcd_guard.put(f"state-{self.number}", value)

        def send(transaction: dict[str, Any]) -> dict[str, Any]:
            if write in transaction.get("success", ()):
                pause()
                if self.is_torn:
                    transaction = {**transaction, "compare": []}
            return self.send(transaction)

        guard = EtcdGuard(send, prefix=f"floors-{self.number}/")
        yield Attempt(guard, lambda transaction: transaction["success"].append(write))

    def value(self) -> str:
        key = etcd_guard.put(f"state-{self.number}", "")["request_put"]["key"]
        answer = self.send({"success": [{"request_range": {"key": key}}]})
        found = answer["responses"][0]["response_range"].get("kvs")
        return b64decode(found[0]["value"]).decode() if found else ""

    def unchecked(self, patch: pytest.MonkeyPatch) -> None:
        super().unchecked(patch)
        self.is_torn = True  # it compares on the server as well

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        self.is_torn = True


class ZooKeeper(Case):
    module = "zookeeper"

    def __init__(self, ensemble: ZooKeeperEnsemble, number: int) -> None:
        self.hosts = ensemble.hosts()
        self.node = f"/state-{number}"
        self.floors = f"/floors-{number}"
        self.is_torn = False
        with self._client() as client:
            client.create(self.node, b"")

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        client = KazooClient(self.hosts, timeout=10.0)
        client.start(timeout=30.0)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        with self._client() as client:
            begin, commit = client.transaction, self._commit(pause)

            def transaction() -> Any:
                made = begin()
                intact, made.commit_async = made.commit_async, lambda: commit(made, intact)
                return made

            client.transaction = transaction
            guard = ZooKeeperGuard(client, path=self.floors, timeout=60.0)
            yield Attempt(guard, lambda it: it.set_data(self.node, value.encode()))

    def _commit(self, pause: Pause) -> Callable[[Any, Callable[[], Any]], Any]:
        def commit(transaction: Any, intact: Callable[[], Any]) -> Any:
            pause()
            if self.is_torn:
                transaction.operations = [
                    SetData(one.path, one.data, -1) if isinstance(one, SetData) else one
                    for one in transaction.operations
                    if not isinstance(one, CheckVersion)
                ]
            return intact()

        return commit

    def value(self) -> str:
        with self._client() as client:
            client.sync(self.node)
            found: bytes = client.get(self.node)[0]
            return found.decode()

    def unchecked(self, patch: pytest.MonkeyPatch) -> None:
        super().unchecked(patch)
        self.is_torn = True  # it compares on the server as well

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        self.is_torn = True


class File(Case):
    module = "files"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "state.txt"

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        def write(file: IO[bytes]) -> None:
            pause()
            file.write(value.encode())

        yield Attempt(FileGuard(self.path), write)

    def value(self) -> str:
        return self.path.read_text() if self.path.exists() else ""

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        """Do not lock the fence; each writer has its own temporary file, as it would need."""
        patch.setattr("lockfast.guards.files.fcntl.flock", lambda fd, how: None)
        intact = FileGuard._new_content

        def own(guard: FileGuard) -> contextlib.AbstractContextManager[IO[bytes]]:
            other = FileGuard(guard.path.with_name(f"{id(guard)}.txt"))
            return intact(other)

        patch.setattr(FileGuard, "_new_content", own)


class Unconditional:
    """A store that ignores the condition of a put, as many S3-compatible servers do."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, path: str, body: bytes, **_: Any) -> None:
        self._store.put(path, body)

    async def put_async(self, path: str, body: bytes, **_: Any) -> None:
        await self._store.put_async(path, body)


class Objects(Case):
    module = "objects"

    def __init__(self, store: Any, number: int) -> None:
        self.store = store
        self.path = f"orders/{number}"

    @contextlib.contextmanager
    def blocking(self, value: str, pause: Pause) -> Iterator[Attempt]:
        yield Attempt(ObjectGuard(self.store, self.path), self._writing(value, pause))

    @contextlib.asynccontextmanager
    async def aio(self, value: str, pause: Pause) -> AsyncIterator[Attempt]:
        yield Attempt(AsyncObjectGuard(self.store, self.path), self._writing(value, pause))

    def _writing(self, value: str, pause: Pause) -> Callable[[bytes | None], bytes]:
        def write(content: bytes | None) -> bytes:
            pause()
            return value.encode()

        return write

    def value(self) -> str:
        found = ObjectGuard(self.store, self.path).read_bytes()
        return found.decode() if found is not None else ""

    def torn(self, patch: pytest.MonkeyPatch) -> None:
        self.store = Unconditional(self.store)


class Servers:
    """The servers that cases need, each started on first use."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._started: dict[type, Any] = {}
        self._number = 0

    def of(self, kind: type[Any], *arguments: Any) -> Any:
        if kind not in self._started:
            self._started[kind] = self._stack.enter_context(kind(*arguments))
        return self._started[kind]

    def case(self, name: str, directory: Path) -> Case:
        from obstore.store import MemoryStore

        self._number += 1
        made: dict[str, Callable[[], Case]] = {
            "memory": Memory,
            "sqlite": lambda: Sqlite(directory),
            "postgresql": lambda: Postgres(self.of(PostgresServer)),
            "sqlalchemy": lambda: SqlAlchemy(self.of(PostgresServer)),
            "redis": lambda: Redis(self.of(RedisServer)),
            "etcd": lambda: Etcd(self.of(EtcdCluster, 1), self._number),
            "zookeeper": lambda: ZooKeeper(self.of(ZooKeeperEnsemble), self._number),
            "file": lambda: File(directory),
            "s3": lambda: Objects(self.of(S3Server).store(), self._number),
            "object-memory": lambda: Objects(MemoryStore(), self._number),
        }
        return made[name]()

    def close(self) -> None:
        self._stack.close()


CASES = (
    *("memory", "sqlite", "postgresql", "sqlalchemy", "redis", "etcd", "zookeeper", "file"),
    *("s3", "object-memory"),
)
