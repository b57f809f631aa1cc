"""Clients that die or are ended at the worst moment, as often as one likes.

The tests do it a few times. For many:
`python -m tests.etcd.ends --deaths 200 --waiters 10000 --rounds 1000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import threading
from asyncio import FIRST_EXCEPTION
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import lockfast
import lockfast.aio
from tests.etcd.harness import address_of
from tests.processes.crew import Crew, Link, until
from tests.servers.etcd import EtcdCluster

TTL_S = 2
AT_ONCE = 10
"""Locks whose holders and waiters die at the same moment."""
PORTION = 200
"""Tasks that enter a queue at the same moment: each must be answered within connect_timeout."""


def keys_left(cluster: EtcdCluster, url: str) -> list[str]:
    """Return the keys of claims and sessions in a namespace."""
    root = address_of(url).root.encode()
    start, stop = b64encode(root).decode(), b64encode(root + b"\xff").decode()
    found: Any = cluster.call("/v3/kv/range", {"key": start, "range_end": stop, "keys_only": True})
    names = [b64decode(kv["key"])[len(root) :].decode() for kv in found.get("kvs", ())]
    return [name for name in names if name[0] in "bnopux"]


def hold(link: Link, names: list[str]) -> None:
    """Hold locks until killed."""
    client = link.connect(ttl=TTL_S)
    leases = [client.lock(name).acquire() for name in names]
    link.say("holds", len(leases))
    link.hear()


def wait(link: Link, names: list[str]) -> None:
    """Wait for locks until killed."""
    client = link.connect(ttl=TTL_S)
    for name in names:
        threading.Thread(target=client.lock(name).acquire, daemon=True).start()
    link.say("waits")
    link.hear()


def die_together(
    directory: Path, cluster: EtcdCluster, deaths: int, waiters: int
) -> Iterator[float | None]:
    """Yield how long after kill -9 of a holder and all its waiters the next one has the lock.

    None if a known bug made etcd panic during that time, which restarts the leases.
    """
    url = cluster.url()
    for first in range(0, deaths, AT_ONCE):
        names = [f"orders/{first + i}" for i in range(min(AT_ONCE, deaths - first))]
        crew = Crew(directory)
        crew.url = url
        took_s: list[float] = []

        def take(client: lockfast.Client, name: str, took_s: list[float] = took_s) -> None:
            with client.lock(name):
                took_s.append(monotonic())

        try:
            revive(cluster)
            doomed = [crew.start(hold, names)]
            doomed[0].hears("holds")
            doomed += [crew.start(wait, names) for _ in range(waiters)]
            client = crew.client(ttl=30)
            for name in names:
                await_waiting(cluster, client, name, waiters)
            threads = [threading.Thread(target=take, args=(client, name)) for name in names]
            for thread in threads:
                thread.start()
            for name in names:
                await_waiting(cluster, client, name, waiters + 1)
            for child in doomed:
                child.process.kill()
            died_s, fell = monotonic(), False
            while any(thread.is_alive() for thread in threads):
                assert monotonic() < died_s + 60, "a lock stayed with the dead"
                threads[0].join(0.1)
                fell = revive(cluster) or fell
        finally:
            crew.dismiss()
        assert len(took_s) == len(names)
        yield from (None if fell else took - died_s for took in took_s)


def revive(cluster: EtcdCluster) -> bool:
    """Restart members that crashed because of a known bug; return whether there were any."""
    if not any(member.has_exited() for member in cluster.members):
        return False
    cluster.revive()
    cluster.until_ready()
    return True


def await_waiting(cluster: EtcdCluster, client: lockfast.Client, name: str, count: int) -> None:
    def is_so() -> bool:
        revive(cluster)
        with contextlib.suppress(lockfast.StoreUnavailableError):
            return client.inspect(name).waiting_count == count
        return False

    until(is_so, f"{count} wait for {name}")


def serve_tasks(url: str, waiters: int) -> list[int]:
    """Return the order in which tasks of one client get a lock that another client has held."""
    served: list[int] = []

    async def story() -> None:
        async with lockfast.aio.connect(url, ttl=60, connect_timeout=60) as client:

            async def take(number: int) -> None:
                async with client.lock("orders/42"):
                    served.append(number)

            tasks: list[asyncio.Task[None]] = []
            for count in (*range(PORTION, waiters, PORTION), waiters):
                tasks += [
                    asyncio.create_task(take(len(tasks) + i)) for i in range(count - len(tasks))
                ]
                while (await client.inspect("orders/42")).waiting_count < count:
                    done, _ = await asyncio.wait(tasks, timeout=0.05, return_when=FIRST_EXCEPTION)
                    assert not done, done
            held.release()
            await asyncio.gather(*tasks)

    with lockfast.connect(url, ttl=60) as holder:
        held = holder.lock("orders/42").acquire()
        asyncio.run(story())
    return served


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
    parser.add_argument("--waiters", type=int, default=10_000)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with EtcdCluster(1) as node:
        if arguments.deaths:
            with TemporaryDirectory() as directory:
                found = list(die_together(Path(directory), node, arguments.deaths, 3))
            took_s = sorted(took for took in found if took is not None)
            free = sum(took <= TTL_S + 1 for took in took_s)
            print(
                f"holder and 3 waiters killed, TTL {TTL_S} s: free within TTL + 1 s in {free} of "
                f"{len(took_s)}; slowest {took_s[-1]:.2f} s; {len(found) - len(took_s)} not "
                "counted, since etcd panicked",
                flush=True,
            )
        if arguments.waiters:
            began_s = monotonic()
            served = serve_tasks(node.url(), arguments.waiters)
            print(
                f"{arguments.waiters} tasks of one client behind another's holder: served in order "
                f"is {served == sorted(served)}, in {monotonic() - began_s:.1f} s",
                flush=True,
            )
        url, panics = node.url(), 0
        for number in range(arguments.rounds):
            try:
                end_while_threads_acquire(url, ("close", "revoke")[number % 2], number)
                # If etcd panicked before, clients could not end their sessions, and their leases
                # began anew when it restarted.
                until(lambda: keys_left(node, url) == [], "nothing is left behind", within=90)
            except OSError:
                if not node.members[0].has_exited():
                    raise
                # A client that disconnects during a read makes an old etcd panic: see `revive`.
                node.revive()
                node.until_ready()
                panics += 1
            if number % 50 == 49:
                print(f"{number + 1} rounds of ends, nothing left behind; {panics} panics of etcd")


if __name__ == "__main__":
    # This module is `__main__` here, but the processes must find its roles by name.
    importlib.import_module("tests.etcd.ends").main()
