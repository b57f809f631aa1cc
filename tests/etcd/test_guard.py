"""A guard for data kept in etcd: the write and the check are one transaction."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pytest

import lockfast
from lockfast.guards.etcd import EtcdGuard, gateway
from tests.servers.etcd import EtcdCluster


@pytest.fixture
def guard(node: EtcdCluster) -> EtcdGuard:
    prefix = node.url().partition("namespace=")[2]
    return EtcdGuard(gateway(f"http://127.0.0.1:{node.members[0].port}"), prefix=f"{prefix}/")


def coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def stored(node: EtcdCluster, key: str) -> str | None:
    found: Any = node.call("/v3/kv/range", {"key": coded(key)})
    return b64decode(found["kvs"][0]["value"]).decode() if "kvs" in found else None


def test_a_stale_holder_cannot_write_after_its_successor(
    node: EtcdCluster, guard: EtcdGuard
) -> None:
    with lockfast.connect(node.url()) as client:
        old = client.lock("orders/42").acquire()
        old.release()
        new = client.lock("orders/42").acquire()
        guard.put("orders/42", new.token, "data/42", "of the new holder")
        with pytest.raises(lockfast.StaleTokenError):
            guard.put("orders/42", old.token, "data/42", "of the old holder")
        assert stored(node, "data/42") == "of the new holder"
        assert guard.floor("orders/42") == new.token
        new.release()


def test_once_and_shared(guard: EtcdGuard) -> None:
    guard.admit("a", 10, once=True)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a", 10, once=True)
    guard.admit("a", 10)
    guard.admit("a", 11, shared=True)
    assert guard.floor("a") == 10
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a", 9, shared=True)


def test_a_tree_guard_compares_what_is_above_and_below(node: EtcdCluster) -> None:
    send = gateway(f"http://127.0.0.1:{node.members[0].port}")
    guard = EtcdGuard(send, prefix=f"{node.url()}/", tree=True)
    guard.admit("a/b", 20)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a", 19)
    guard.admit("a", 21)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a/b/c", 20)


def test_the_comparison_serves_in_a_transaction_of_the_callers_own(
    node: EtcdCluster, guard: EtcdGuard
) -> None:
    def write(token: int) -> Any:
        put = {"request_put": {"key": coded("own"), "value": coded(str(token))}}
        compare = guard.comparisons("own", token)
        body = {"compare": compare, "success": [put, *guard.floors("own", token)]}
        return node.call("/v3/kv/txn", body).get("succeeded", False)

    assert write(7)
    assert write(8)
    assert not write(7)
    assert stored(node, "own") == "8"


def test_what_the_caller_compares_itself_is_no_stale_token(guard: EtcdGuard) -> None:
    absent = {"key": coded("nothing-there"), "target": "CREATE", "create_revision": "5"}
    answer = guard.transact("a", 5, {"compare": [absent]})
    assert not answer.get("succeeded")
    assert guard.floor("a") == 0


def test_deleted_floors_are_made_again(node: EtcdCluster, guard: EtcdGuard) -> None:
    """Deleting floors loses them; every later admission is still checked."""
    guard.admit("a", 10)
    everything = {"key": coded(guard._prefix), "range_end": coded(guard._prefix + "~")}
    node.call("/v3/kv/deleterange", everything)
    guard.put("a", 11, "data/a", "written")
    assert stored(node, "data/a") == "written"
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a", 10)


def test_a_tree_guard_never_lowers_a_floor(node: EtcdCluster) -> None:
    send = gateway(f"http://127.0.0.1:{node.members[0].port}")
    guard = EtcdGuard(send, prefix=f"{node.url()}/", tree=True)
    guard.admit("a/b", 200)
    guard.admit("a/c", 100)
    with pytest.raises(lockfast.StaleTokenError):
        guard.admit("a", 150)
