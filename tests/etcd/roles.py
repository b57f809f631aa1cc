"""What the processes of these tests do."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import lockfast
from tests.processes.crew import Link


def compete(link: Link, name: str, ttl: float, entries: str) -> None:
    """Take the lock over and over, until told to stop; write down each coming and going.

    `in TOKEN`, then `out TOKEN held` or `out TOKEN lost`, as the lease knows at that moment:
    whoever has lost it is stale, and knows it.
    """
    stop = threading.Event()

    def listen() -> None:
        link.hear()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    book = os.open(entries, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    link.say("ready")
    with link.connect(ttl=ttl) as client:
        while not stop.is_set():
            try:
                lease = client.lock(name).acquire(timeout=1.0)
            except (lockfast.AcquireTimeoutError, lockfast.StoreError):
                continue
            os.write(book, f"in {lease.token}\n".encode())
            verdict = "lost" if lease.lost.is_set() else "held"
            os.write(book, f"out {lease.token} {verdict}\n".encode())
            link.say(verdict, lease.token)
            with suppress(lockfast.LockfastError):
                lease.release()
    link.say("done")


def hold_until_lost(link: Link, name: str, ttl: float) -> None:
    """Take the lock, say so, and say when it is lost, by our own clock."""
    with link.connect(ttl=ttl) as client:
        lease = client.lock(name).acquire()
        link.say("held", lease.token)
        lease.lost.wait(60)
        link.say("lost" if lease.lost.is_set() else "kept")
        link.hear()


def count_up(link: Link, name: str, times: int) -> None:
    """Take and give back the lock so often, when told to begin."""
    with link.connect(ttl=30.0) as client:
        client.lock(f"warm-up/{os.getpid()}").acquire().release()
        link.say("ready")
        link.hear()
        tokens = []
        for _ in range(times):
            with client.lock(name) as lease:
                tokens.append(lease.token)
        link.say("tokens", *tokens)
        link.hear()
