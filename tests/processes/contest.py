"""Processes that compete for one lock while servers are harmed, and who judges them.

Each writes down its comings and goings in one book, in the order in which they happen.
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


def visits(book: str) -> Iterator[tuple[int, int, int]]:
    """Those who held when they went: where they came and went, and their tokens."""
    came: dict[int, int] = {}
    for at, line in enumerate(book.splitlines()):
        word, token, *verdict = line.split()
        if word == "in":
            assert int(token) not in came, f"token {token} was given twice"
            came[int(token)] = at
        elif verdict == ["held"]:
            yield came[int(token)], at, int(token)


def judge(book: str) -> int:
    """See that nobody came while another held, and that tokens rise in the order of entry.

    Whoever says `held` as it goes has held all the time since it came, so all others came
    before or after. Returns how many there were.
    """
    found = sorted(visits(book))
    for (_, gone, token), (came, _, next_token) in pairwise(found):
        assert gone < came, f"{next_token} came while {token} was inside"
        assert token < next_token, f"{next_token} came after {token}"
    return len(found)


class Servers(Protocol):
    """What the processes compete on."""

    def revive(self) -> None:
        """Start servers again that fell over a bug of their own."""

    def describe(self) -> str:
        """What they do now and have said, for a test that fails."""


class Contest:
    """Processes that compete, and what they say and write down."""

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
        """Until so many held, each at least once; returns when all had, in milliseconds."""
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
        """What was said so far."""
        for child in self._children:
            while child.is_talking(0.0):
                self._hear(child)

    def _hear(self, child: Child) -> str:
        word = child.hears_anything().split()[0]
        self._held += word == "held"
        return word

    def end(self) -> None:
        """Nothing that was said is missing in the book, and all of it is as promised."""
        for child in self._children:
            child.tell("stop")
        for child in self._children:
            while self._hear(child) != "done":
                pass
        assert judge(self._book.read_text()) == self._held
