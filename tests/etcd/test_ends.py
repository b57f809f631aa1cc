"""Sessions that end at the worst moment leave nothing behind, and lines go on."""

from __future__ import annotations

import contextlib
import threading
from base64 import b64decode, b64encode
from typing import Any

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster

A = c.Place("lock", "orders/42", "exclusive")


def keys_left(cluster: EtcdCluster, url: str) -> list[str]:
    """Keys of claims and sessions in a namespace."""
    root = address_of(url).root.encode()
    start, stop = b64encode(root).decode(), b64encode(root + b"\xff").decode()
    found: Any = cluster.call("/v3/kv/range", {"key": start, "range_end": stop, "keys_only": True})
    names = [b64decode(kv["key"])[len(root) :].decode() for kv in found.get("kvs", ())]
    return [name for name in names if name[0] in "bnopux"]


@pytest.mark.parametrize("waiters", [1, 3])
def test_holder_and_waiters_die_together(node: EtcdCluster, waiters: int) -> None:
    """Nobody ends their sessions but etcd, and whoever lives is granted the lock."""
    url = node.url()
    for _ in range(5):
        stores = [EtcdStore(address_of(url)) for _ in range(waiters + 1)]
        for i, store in enumerate(stores):
            opening = c.Open(f"dead-{i}", 1000, "owner")
            entered = c.Enter(f"dead-{i}", 1, (A,), open=opening)
            reply = run(store.caller_wire().send(entered, 5000))
            assert isinstance(reply, c.Queued if i else c.Granted)
            store.close()
        with lockfast.connect(url, ttl=30) as client:
            lease = client.lock("orders/42").acquire(timeout=20)
            lease.release()
        # The sessions of the next round have the same names.
        until(lambda: keys_left(node, url) == [], "etcd has ended them all")


@pytest.mark.parametrize("waiters", [20, 200])
def test_many_waiters_of_one_client_are_served_in_order(node: EtcdCluster, waiters: int) -> None:
    url = node.url()
    served: list[int] = []
    with lockfast.connect(url, ttl=30) as holder, lockfast.connect(url, ttl=30) as client:
        held = holder.lock("orders/42").acquire()

        def take(number: int) -> None:
            with client.lock("orders/42"):
                served.append(number)

        threads = [threading.Thread(target=take, args=(i,)) for i in range(waiters)]
        for i, thread in enumerate(threads):
            thread.start()
            until(
                lambda count=i + 1: holder.inspect("orders/42").waiting_count == count,  # type: ignore[misc]
                "it waits",
            )
        held.release()
        for thread in threads:
            thread.join(60)
    assert served == list(range(waiters))
    assert keys_left(node, url) == []


@pytest.mark.parametrize("how", ["close", "revoke"])
def test_a_session_ends_while_eight_threads_acquire(node: EtcdCluster, how: str) -> None:
    """Whatever they were about to take is free, or taken by those who live."""
    url = node.url()
    for round_number in range(4):
        client = lockfast.connect(url, ttl=3)
        busy = threading.Barrier(9)
        stop = threading.Event()

        def work(
            client: lockfast.Client = client,
            busy: threading.Barrier = busy,
            stop: threading.Event = stop,
        ) -> None:
            busy.wait(30)
            number = 0
            while not stop.is_set():
                number += 1
                with contextlib.suppress(lockfast.LockfastError, RuntimeError):
                    client.lock(f"orders/{number % 3}").acquire(timeout=5).release()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        busy.wait(30)
        with lockfast.connect(url, ttl=30) as admin:
            until(lambda: bool(admin.sessions()), "it is at work")
            if how == "revoke":
                for info in admin.sessions():
                    if not info.ended:
                        admin.revoke(session=info.session, reason=f"round {round_number}")
                stop.set()
            else:
                client.close()
                stop.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            client.close()
            for number in range(3):
                admin.lock(f"orders/{number}").acquire(timeout=30).release()
        until(lambda: keys_left(node, url) == [], "nothing is left behind")
