"""A short story of two clients: one holds, the other waits, acquires, renews and releases.

The connection of the second is cut at some byte, or its process is killed there. At every byte,
errors are typed, tokens rise, and the lock can be acquired afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import lockfast
from lockfast.core.commands import Renew
from lockfast.errors import LockfastError
from lockfast.runtimes.threads import run
from tests.servers.proxy import DIRECTIONS, Cut, Proxy

NAME: Final = "crash/point"
TTL_S: Final = 60.0
"""Longer than a test waits: a lost claim would block the lock for all that time."""
TTL_KILLED_S: Final = 2.0
PATIENCE_S: Final = 30.0
EVERY_BYTE: Final = "LOCKFAST_EVERY_BYTE"
"""The environment variable that selects every byte instead of a sample."""


def wait_renew_release(client: lockfast.Client) -> int:
    """Acquire, renew and release; return the token."""
    lease = client.lock(NAME).acquire(timeout=PATIENCE_S)
    session = lease._holding.session
    assert session is not None
    run(client._core.request(Renew(session.id, lowest=lease._holding.n), 5000))
    token = lease.token
    lease.release()
    return token


def points(proxy: Proxy, sampled: int) -> list[Cut]:
    """Return cuts for the traffic since the proxy was armed: at every byte, or at a sample."""
    found = []
    for direction in DIRECTIONS:
        size = proxy.passed(direction)
        step = 1 if os.environ.get(EVERY_BYTE) else max(1, size // sampled)
        found += [Cut(direction, after) for after in range(0, size, step)]
    return found


class Story:
    """One run, over `direct` (the server itself) and `broken` (through the proxy)."""

    def __init__(self, direct: str, broken: str, proxy: Proxy) -> None:
        self._direct, self._broken = direct, broken
        self._proxy = proxy
        self.tokens: list[int] = []
        self.errors: list[BaseException] = []

    def tell(self, cut: Cut | None) -> None:
        """Run the story with a connection reset; the client stays alive."""
        with (
            lockfast.connect(self._direct, ttl=TTL_S) as first,
            lockfast.connect(self._broken, ttl=TTL_S) as second,
        ):
            held = first.lock(NAME).acquire(timeout=PATIENCE_S)
            self.tokens.append(held.token)
            self._proxy.arm(cut)
            waiting = threading.Thread(target=self._second, args=(second,))
            waiting.start()
            _until(lambda: bool(first.inspect(NAME).waiting) or not waiting.is_alive())
            held.release()
            waiting.join()
            if cut is not None:
                self._proxy.arm(None)
            # Whatever happened, the second client releases the lock without waiting for a TTL.
            self._take(first)

    def _second(self, client: lockfast.Client) -> None:
        try:
            self.tokens.append(wait_renew_release(client))
        except BaseException as error:
            self.errors.append(error)

    def tell_killed(self, cut: Cut) -> None:
        """Run the story; the second process is killed when the byte has passed."""
        with lockfast.connect(self._direct, ttl=TTL_KILLED_S) as first:
            held = first.lock(NAME).acquire(timeout=PATIENCE_S)
            self.tokens.append(held.token)
            command = [sys.executable, "-m", "tests.crashpoints.worker", self._broken]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                self._proxy.arm(cut, process.kill)
                process.stdin.write(b"\n")
                process.stdin.flush()
                _until(lambda: bool(first.inspect(NAME).waiting) or process.poll() is not None)
                held.release()
                process.wait(PATIENCE_S)
            self._proxy.arm(None)
            self._take(first)

    def _take(self, client: lockfast.Client) -> None:
        with client.lock(NAME).acquire(timeout=PATIENCE_S) as lease:
            self.tokens.append(lease.token)
            seen = client.inspect(NAME)
            assert [holder.token for holder in seen.holders] == [lease.token]

    def check(self, cut: Cut | None) -> None:
        assert self.tokens == sorted(set(self.tokens)), cut
        assert all(isinstance(error, LockfastError) for error in self.errors), (cut, self.errors)


def _until(happens: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not happens():
        assert time.monotonic() < until
        threading.Event().wait(0.005)
