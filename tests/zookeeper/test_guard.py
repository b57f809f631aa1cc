"""A guard for data kept in ZooKeeper: the write and the check are one `multi`.

`tests/guards/test_execute.py` shows that a late holder is refused, and that it would not be without
the check; `test_against_memory` shows that it decides like the other guards.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lockfast.errors import (
    OutcomeUnknownError,
    StaleTokenError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.guards import FenceDamagedError, ZooKeeperGuard
from tests.servers.proxy import Proxy, Shape
from tests.servers.zookeeper import ZooKeeperEnsemble

WRITERS = 6
ROUNDS = 5
_numbers = itertools.count(1)


@contextmanager
def connected(hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts, timeout=20.0)
    client.start(timeout=30.0)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def client(node: ZooKeeperEnsemble) -> Iterator[KazooClient]:
    with connected(node.hosts()) as started:
        yield started


@pytest.fixture
def path() -> str:
    """For the data of one test; its floors are below it."""
    return f"/guarded-{next(_numbers)}"


@pytest.fixture
def guard(client: KazooClient, path: str) -> ZooKeeperGuard:
    client.create(path, b"first")
    return ZooKeeperGuard(client, path=f"{path}/floors")


def test_the_callers_operations_are_executed_once_and_their_results_returned(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    calls = []

    def write(transaction: object) -> None:
        calls.append(transaction)
        transaction.create(f"{path}/log-", b"paid", sequence=True)  # type: ignore[attr-defined]
        transaction.set_data(path, b"paid")  # type: ignore[attr-defined]

    created, changed = guard.execute("orders/42", 7, write)
    assert created == f"{path}/log-0000000001"  # after the directory of the floors
    assert changed.version == 1
    assert len(calls) == 1
    assert guard.floor("orders/42") == 7


def test_a_refused_token_writes_nothing(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    guard.set("orders/42", 8, path, b"new")
    for how in ({}, {"shared": True}, {"once": True}):
        with pytest.raises(StaleTokenError):
            guard.set("orders/42", 7, path, b"old", **how)
    with pytest.raises(StaleTokenError):
        guard.set("orders/42", 8, path, b"again", once=True)
    assert client.get(path)[0] == b"new"


def test_an_operation_that_fails_raises_its_own_error_and_no_floor(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    with pytest.raises(NodeExistsError):
        guard.execute("a", 5, lambda it: it.create(path))
    with pytest.raises(NoNodeError):
        guard.set("a", 5, f"{path}/nowhere", b"")
    with pytest.raises(BadVersionError):
        guard.execute("a", 5, lambda it: it.check(path, 99))
    assert guard.floor("a") == 0


def test_an_operation_that_commits_by_itself_is_refused(guard: ZooKeeperGuard) -> None:
    with pytest.raises(UnsupportedError, match="leave the commit to the guard"):
        guard.execute("a", 5, lambda it: it.commit())


def test_the_check_serves_in_a_transaction_of_the_callers_own(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    late = client.transaction()
    guard.add_check(late, "orders/42", 7)
    late.set_data(path, b"late")
    transaction = client.transaction()
    guard.add_check(transaction, "orders/42", 8)
    transaction.set_data(path, b"in time")
    transaction.commit()
    assert isinstance(late.commit()[0], BadVersionError)
    assert client.get(path)[0] == b"in time"
    with pytest.raises(StaleTokenError):
        guard.add_check(client.transaction(), "orders/42", 7)


def test_deleted_floors_are_made_again(
    client: KazooClient, guard: ZooKeeperGuard, path: str
) -> None:
    """Deleting floors loses them; every later admission is still checked."""
    guard.admit("a", 10)
    client.delete(f"{path}/floors", recursive=True)
    guard.set("a", 11, path, b"written")
    assert client.get(path)[0] == b"written"
    with pytest.raises(StaleTokenError):
        guard.admit("a", 10)


@pytest.mark.parametrize("damage", [b"", b"-1", b"1" * 17, "٣".encode(), b"1 "])
def test_a_floor_that_is_no_token_is_refused(
    client: KazooClient, guard: ZooKeeperGuard, path: str, damage: bytes
) -> None:
    guard.admit("a/b", 10)
    client.set(f"{path}/floors/name:a%2Fb", damage)
    with pytest.raises(FenceDamagedError, match="where a token belongs"):
        guard.set("a/b", 11, path, b"written")
    assert client.get(path)[0] == b"first"


@pytest.mark.parametrize("path", ["", "floors", "/floors/", "/", "//floors", "/a\nb"])
def test_a_path_that_zookeeper_would_refuse(path: str) -> None:
    with pytest.raises(UnsupportedError):
        ZooKeeperGuard(None, path=path)


def test_every_name_of_a_lock_can_be_a_floor(client: KazooClient, guard: ZooKeeperGuard) -> None:
    names = ["ü", "a.b", "%", "\ue000", "\uffff", "x" * 512, "a/b", "a%2Fb", "name:a"]
    for token, name in enumerate(names, 1):
        guard.admit(name, token)
    assert [guard.floor(name) for name in names] == list(range(1, len(names) + 1))


def test_writers_beneath_one_ancestor_do_not_undo_each_other(
    node: ZooKeeperEnsemble, path: str
) -> None:
    """Writes are in the order of their tokens, however many raise the same floors at once."""
    tokens = itertools.count(1)
    order = threading.Lock()
    failed: list[BaseException] = []

    def write(name: str) -> None:
        try:
            with connected(node.hosts()) as client:
                guard = ZooKeeperGuard(client, path=f"{path}/floors", tree=True)
                for _ in range(ROUNDS):
                    with order:
                        token = next(tokens)
                    guard.admit(f"a/{name}", token)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(str(n),)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    with connected(node.hosts()) as client:
        guard = ZooKeeperGuard(client, path=f"{path}/floors", tree=True)
        assert guard.floor("a") == WRITERS * ROUNDS


def test_a_server_that_does_not_answer_is_an_error_in_bounded_time(
    node: ZooKeeperEnsemble, path: str
) -> None:
    with Proxy(("127.0.0.1", node.members[0].port)) as proxy, connected(proxy.address) as client:
        client.create(path, b"first")
        patient = ZooKeeperGuard(client, path=f"{path}/floors", timeout=60.0)
        patient.admit("a", 1)
        guard = ZooKeeperGuard(client, path=f"{path}/floors", timeout=0.3)
        proxy.shape("reply", Shape(held=True))
        with pytest.raises(StoreUnavailableError):
            guard.admit("a", 2)
        with pytest.raises(OutcomeUnknownError):
            guard._get(client.transaction().commit_async(), writes=True)
        proxy.heal()
        patient.admit("a", 3)
    with pytest.raises(StoreUnavailableError):
        guard.admit("a", 4)
