"""Clients that die or are ended at the worst moment, as often as one likes.

The tests do it a few times. For many: `python -m tests.etcd.ends --deaths 200 --rounds 1000`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from time import monotonic
from typing import Any

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster

TTL_S = 2
AT_ONCE = 10
"""Locks whose holders and waiters die in the same moment."""


def keys_left(cluster: EtcdCluster, url: str) -> list[str]:
    """Keys of claims and sessions in a namespace."""
    root = address_of(url).root.encode()
    start, stop = b64encode(root).decode(), b64encode(root + b"\xff").decode()
    found: Any = cluster.call("/v3/kv/range", {"key": start, "range_end": stop, "keys_only": True})
    names = [b64decode(kv["key"])[len(root) :].decode() for kv in found.get("kvs", ())]
    return [name for name in names if name[0] in "bnopux"]


def die_together(url: str, deaths: int, waiters: int) -> Iterator[float]:
    """How long after the death of a holder and all who wait a living waiter has the lock."""
    for first in range(0, deaths, AT_ONCE):
        names = [f"orders/{first + i}" for i in range(min(AT_ONCE, deaths - first))]
        store = EtcdStore(address_of(url))
        wire = store.caller_wire()
        for name in names:
            place = c.Place("lock", name, "exclusive")
            for i in range(waiters + 1):
                session = f"dead-{name}-{i}"
                opening = c.Open(session, TTL_S * 1000, "owner")
                reply = run(wire.send(c.Enter(session, 1, (place,), open=opening), 5000))
                assert isinstance(reply, c.Queued if i else c.Granted)
        store.close()
        died_s = monotonic()
        took_s: list[float] = []

        def take(
            client: lockfast.Client, name: str, died_s: float = died_s, took: Any = took_s
        ) -> None:
            with client.lock(name):
                took.append(monotonic() - died_s)

        with lockfast.connect(url, ttl=30) as client:
            threads = [threading.Thread(target=take, args=(client, name)) for name in names]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert len(took_s) == len(names), "a lock stayed with the dead"
        yield from took_s


def end_while_threads_acquire(url: str, how: str, number: int) -> None:
    """Close a client or revoke its session while eight of its threads take three locks."""
    client = lockfast.connect(url, ttl=3)
    busy, stop = threading.Barrier(9), threading.Event()

    def work() -> None:
        busy.wait(30)
        count = 0
        while not stop.is_set():
            count += 1
            with contextlib.suppress(lockfast.LockfastError, RuntimeError):
                client.lock(f"orders/{count % 3}").acquire(timeout=5).release()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    busy.wait(30)
    with lockfast.connect(url, ttl=30) as admin:
        until(lambda: bool(admin.sessions()), "it is at work")
        if how == "revoke":
            for info in admin.sessions():
                if not info.ended:
                    admin.revoke(session=info.session, reason=f"round {number}")
        else:
            client.close()
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        client.close()
        for i in range(3):
            admin.lock(f"orders/{i}").acquire(timeout=30).release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with EtcdCluster(1) as node:
        if arguments.deaths:
            took_s = sorted(die_together(node.url(), arguments.deaths, waiters=3))
            free = sum(took <= TTL_S + 1 for took in took_s)
            print(
                f"holder and 3 waiters killed, TTL {TTL_S} s: free within TTL + 1 s in {free} of "
                f"{len(took_s)}; slowest {took_s[-1]:.2f} s",
                flush=True,
            )
        url, panics = node.url(), 0
        for number in range(arguments.rounds):
            try:
                end_while_threads_acquire(url, ("close", "revoke")[number % 2], number)
                until(lambda: keys_left(node, url) == [], "nothing is left behind")
            except OSError:
                if not node.members[0].has_exited():
                    raise
                # A client that goes away during a read makes an old etcd panic: see `revive`.
                node.revive()
                node.until_ready()
                panics += 1
            if number % 50 == 49:
                print(f"{number + 1} rounds of ends, nothing left behind; {panics} panics of etcd")


if __name__ == "__main__":
    main()
