"""Every guard, flat and tree, decides like the memory guard, whatever is admitted."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.client import KazooClient

from lockfast.errors import StaleTokenError
from lockfast.guards.admission import Guard
from lockfast.guards.etcd import EtcdGuard, gateway
from lockfast.guards.memory import MemoryGuard
from lockfast.guards.redis import RedisGuard
from lockfast.guards.sqlite import SqliteGuard
from lockfast.guards.zookeeper import ZooKeeperGuard
from tests.servers.etcd import EtcdCluster
from tests.servers.redis import RedisServer
from tests.servers.zookeeper import ZooKeeperEnsemble

NAMES = ("a", "a/b", "a/c", "a/b/d", "e")
_numbers = itertools.count(1)

admissions = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.integers(1, 6),
        st.sampled_from([{}, {}, {"shared": True}, {"once": True}]),
    ),
    max_size=12,
)
Make = Callable[[bool], Guard]


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(1) as started:
        yield started


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[KazooClient]:
    with ZooKeeperEnsemble() as started:
        client = KazooClient(started.hosts())
        client.start(timeout=30.0)
        yield client
        client.stop()
        client.close()


@pytest.fixture(params=["etcd", "redis", "sqlite", "zookeeper"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "etcd":
        node: EtcdCluster = request.getfixturevalue("etcd")
        send = gateway(f"http://127.0.0.1:{node.members[0].port}")
        yield lambda tree: EtcdGuard(send, prefix=f"floors-{next(_numbers)}/", tree=tree)
    elif request.param == "zookeeper":
        client = request.getfixturevalue("zookeeper")
        yield lambda tree: ZooKeeperGuard(client, path=f"/floors-{next(_numbers)}", tree=tree)
    elif request.param == "redis":
        yield from _redis_guards(request.getfixturevalue("redis_server"))
    else:
        yield from _sqlite_guards(tmp_path)


class InTransactions:
    """The SQLite guard, each admission in its own transaction."""

    def __init__(self, connection: sqlite3.Connection, tree: bool) -> None:
        self._connection = connection
        self._guard = SqliteGuard(connection, tree=tree)

    def admit(self, resource: str, token: int, **how: bool) -> None:
        self._connection.execute("BEGIN")
        try:
            self._guard.admit(resource, token, **how)
        finally:
            self._connection.execute("COMMIT")

    def floor(self, resource: str) -> int:
        return self._guard.floor(resource)


def _redis_guards(server: RedisServer) -> Iterator[Make]:
    client: Any = redis_driver.Redis(unix_socket_path=str(server.socket))
    yield lambda tree: RedisGuard(client, key=f"floors-{next(_numbers)}", tree=tree)
    client.close()


def _sqlite_guards(directory: Path) -> Iterator[Make]:
    opened: list[sqlite3.Connection] = []

    def make(tree: bool) -> Guard:
        path = directory / f"{next(_numbers)}.db"
        opened.append(sqlite3.connect(path, isolation_level=None))
        return InTransactions(opened[-1], tree)

    yield make
    for connection in opened:
        connection.close()


def verdict(guard: Guard, name: str, token: int, how: dict[str, bool]) -> int | None:
    """Return None if it was admitted, else the floor that refused it."""
    try:
        guard.admit(name, token, **how)
    except StaleTokenError as error:
        return error.floor
    return None


@pytest.mark.parametrize("tree", [False, True])
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(asked=admissions)
def test_as_the_memory_guard(make: Make, tree: bool, asked: list[Any]) -> None:
    guard, model = make(tree), MemoryGuard(tree=tree)
    for name, token, how in asked:
        assert verdict(guard, name, token, how) == verdict(model, name, token, how)
        assert [guard.floor(one) for one in NAMES] == [model.floor(one) for one in NAMES]
