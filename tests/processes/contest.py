"""Processes that compete for one lock while servers are broken, and the verdict on them.

Each writes its entries and exits to one log, in the order in which they happen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

import lockfast
from tests.processes.crew import Child, Crew, Link, now_ms, until

PROCESSES = 8
PATIENCE_S = 120.0
"""Only a failing test waits that long."""


def compete(link: Link, name: str, ttl: float, entries: str) -> None:
    """Acquire the lock repeatedly until told to stop; write each entry and exit to the log.

    `in TOKEN`, then `out TOKEN held` or `out TOKEN lost`, by the lease's state at that moment.
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
    """Acquire the lock, report it, and report when it is lost, by our own clock."""
    with link.connect(ttl=ttl) as client:
        lease = client.lock(name).acquire()
        link.say("held", lease.token)
        lease.lost.wait(60)
        link.say("lost" if lease.lost.is_set() else "kept")
        link.hear()


def visits(book: str) -> Iterator[tuple[int, int, int]]:
    """Yield the entry, the exit and the token of each holder that still held when it left."""
    came: dict[int, int] = {}
    for at, line in enumerate(book.splitlines()):
        word, token, *verdict = line.split()
        if word == "in":
            assert int(token) not in came, f"token {token} was given twice"
            came[int(token)] = at
        elif verdict == ["held"]:
            yield came[int(token)], at, int(token)


def judge(book: str) -> int:
    """Check that holds do not overlap, and that tokens rise in the order of entry.

    A process that reports `held` on exit has held since its entry, so all others must have entered
    before or after. Return the number of holds.
    """
    found = sorted(visits(book))
    for (_, gone, token), (came, _, next_token) in pairwise(found):
        assert gone < came, f"{next_token} came while {token} was inside"
        assert token < next_token, f"{next_token} came after {token}"
    return len(found)


class Servers(Protocol):
    """The servers that the processes compete on."""

    def revive(self) -> None:
        """Restart servers that crashed because of a known bug."""

    def describe(self) -> str:
        """Return their state and logs, for the message of a failed test."""


class Contest:
    """The competing processes, and what they report and log."""

    def __init__(self, crew: Crew, servers: Servers, ttl_s: float) -> None:
        self._servers = servers
        self._book = crew.directory / "entries"
        self._children = [
            crew.start(compete, "orders/42", ttl_s, str(self._book)) for _ in range(PROCESSES)
        ]
        for child in self._children:
            child.hears("ready")
        self._held = 0

    def see_everybody(self, grants: int) -> float:
        """Wait for this many grants, at least one per process; return when all had one, in ms."""
        waiting, upto, all_ms = set(self._children), self._held + grants, 0.0

        def enough() -> bool:
            nonlocal all_ms
            self._servers.revive()
            for child in self._children:
                while child.is_talking(0.0):
                    if self._hear(child) == "held":
                        waiting.discard(child)
            all_ms = all_ms or (0.0 if waiting else now_ms())
            return self._held >= upto and not waiting

        try:
            until(enough, f"{grants} grants, of everybody", within=PATIENCE_S)
        except AssertionError as error:
            error.add_note(self._servers.describe())
            raise
        return all_ms

    def hear_all(self) -> None:
        """Read everything reported so far."""
        for child in self._children:
            while child.is_talking(0.0):
                self._hear(child)

    def _hear(self, child: Child) -> str:
        word = child.hears_anything().split()[0]
        self._held += word == "held"
        return word

    def end(self) -> None:
        """Stop the processes; check that the log has everything they reported, and is valid."""
        for child in self._children:
            child.tell("stop")
        for child in self._children:
            while self._hear(child) != "done":
                pass
        assert judge(self._book.read_text()) == self._held
