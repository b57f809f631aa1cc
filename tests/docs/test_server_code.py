"""Python on the pages that needs a server: executed unchanged, with the names it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from kazoo.client import KazooClient
from sqlalchemy import String, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import lockfast
from lockfast import aio
from lockfast.guards import AsyncPostgresGuard, PostgresGuard, RedisGuard
from lockfast.guards.etcd import put
from lockfast.stores.postgresql.schema import guards
from tests.docs.pages import PAGES, ROOT, Block, blocks_of
from tests.servers.etcd import EtcdCluster
from tests.servers.lockserver import ServerProcess
from tests.servers.ports import free_port
from tests.servers.postgresql import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import ZooKeeperEnsemble

HERE = "tests/docs/test_server_code.py"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String)


def block(page: str, with_text: str) -> Block:
    """Return the block of a page that contains this text and is tested here."""
    (found,) = (
        each
        for each in blocks_of(ROOT / "docs" / page)
        if each.test == HERE and with_text in each.code
    )
    return found


@pytest.fixture
def lease() -> Iterator[lockfast.Lease]:
    with lockfast.connect("memory://server-code") as client:
        with client.lock("orders/42") as held:
            yield held


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        server.run(guards())
        server.run("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
        yield server


@pytest.fixture
def names(postgresql: PostgresServer) -> Iterator[dict[str, Any]]:
    """Provide what code with SQLAlchemy on PostgreSQL needs; afterwards the order must be paid."""
    postgresql.run("INSERT INTO orders VALUES (42, 'new')")
    url = f"postgresql+psycopg://postgres@127.0.0.1:{postgresql.port}/postgres"
    engine = create_engine(url)
    yield {
        "AsyncPostgresGuard": AsyncPostgresGuard,
        "AsyncSession": AsyncSession,
        "Order": Order,
        "PostgresGuard": PostgresGuard,
        "Session": Session,
        "async_engine": create_async_engine(url),
        "engine": engine,
    }
    engine.dispose()
    assert postgresql.run("DELETE FROM orders RETURNING state") == [("paid",)]
    ((floor,),) = postgresql.run("SELECT floor FROM lockfast.floors WHERE resource = 'orders/42'")
    assert floor > 0
    postgresql.run("DELETE FROM lockfast.floors")


def test_a_guard_in_postgresql(names: dict[str, Any], lease: lockfast.Lease) -> None:
    def pay(session: Session) -> None:
        order = session.get(Order, 42)
        assert order is not None
        order.state = "paid"

    exec(block("guards.md", "Session(engine)").code, {**names, "lease": lease, "pay": pay})


def test_a_session_of_sqlalchemy(names: dict[str, Any]) -> None:
    with lockfast.connect("memory://sqlalchemy-code") as client:
        code = block("frameworks/sqlalchemy.md", "def pay(session").code
        exec(code, {**names, "client": client})


async def pay_later(names: dict[str, Any]) -> None:
    async with aio.connect("memory://sqlalchemy-aio-code") as client:
        code = block("frameworks/sqlalchemy.md", "async def pay").code
        scope: dict[str, Any] = {**names, "client": client, "engine": names["async_engine"]}
        exec(code, scope)
        await scope["pay"]()
        await names["async_engine"].dispose()


def test_an_async_session_of_sqlalchemy(names: dict[str, Any]) -> None:
    import asyncio

    asyncio.run(pay_later(names))


def test_a_guard_in_redis(lease: lockfast.Lease) -> None:
    with RedisServer(port=free_port()) as server, redis_py.Redis(port=server.port) as client:
        guard = RedisGuard(client)
        exec(block("guards.md", "expire_ms").code, {"guard": guard, "lease": lease})
        assert client.get("order:42:state") == b"paid"
        assert client.get("paid") == b"1"
        code = block("stores/redis.md", "hset").code
        address = code.replace('"localhost"', f'"localhost", {server.port}')
        with lockfast.connect(server.url()) as locks:
            exec(address, {"client": locks})
        assert client.hgetall("order:42") == {b"state": b"paid"}


def test_a_lock_server(tmp_path: Path) -> None:
    code = block("stores/http.md", "https://locks.example").code
    with ServerProcess(f"sqlite://{tmp_path}/locks.db", tmp_path) as server:
        token = tmp_path / "token"
        token.write_text(server.token)
        code = code.replace("https://locks.example", server.url)
        scope: dict[str, Any] = {"lockfast": lockfast}
        exec(code.replace("/run/secrets/lockfast", str(token)), scope)
        scope["client"].close()


@pytest.mark.parametrize("page", ["guards.md", "stores/etcd.md"])
def test_a_guard_in_etcd(page: str, lease: lockfast.Lease) -> None:
    with EtcdCluster() as cluster:
        code = block(page, "gateway(").code
        address = f"http://127.0.0.1:{cluster.members[0].port}"
        scope: dict[str, Any] = {"lease": lease}
        exec(code.replace("http://10.0.0.1:2379", address), scope)
        assert scope["guard"].floor("orders/42") == lease.token
        if page == "stores/etcd.md":
            exec(block(page, "your_write").code, {**scope, "your_write": put("data/orders/42", "")})


def test_a_guard_in_zookeeper(lease: lockfast.Lease) -> None:
    with ZooKeeperEnsemble() as ensemble:
        client = KazooClient(ensemble.hosts())
        client.start(timeout=60)
        try:
            client.create("/orders/42", b"new", makepath=True)
            code = block("guards.md", "ZooKeeperGuard(client)").code
            scope: dict[str, Any] = {"lease": lease, "client": client}
            exec(code, scope)
            assert scope["guard"].floor("orders/42") == lease.token
            assert client.get("/orders/42")[0] == b"paid"
            assert not [each for each in scope["results"] if isinstance(each, Exception)]
        finally:
            client.stop()
            client.close()


def test_every_block_that_names_this_file_is_tested() -> None:
    mine = [it for page in PAGES for it in blocks_of(page) if it.test == HERE]
    assert len(mine) == 10
