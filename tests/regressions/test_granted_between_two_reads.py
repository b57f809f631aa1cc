"""A waiting acquire read the phase of its claim twice, and the grant came between the two reads.

It took the claim for lost and entered again, behind its own grant, which nobody released until a
keep-alive found it.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from types import FrameType
from typing import Any

import pytest

import lockfast
from lockfast.flow import acquire
from lockfast.runtimes.threads import ThreadSignal

WAITS = acquire._wait.__code__
BLOCKS = ThreadSignal.wait_blocking.__code__


class Release:
    """Releases a lease, in another thread, before the n-th instruction of the waiting code."""

    def __init__(self, lease: lockfast.Lease, number: int) -> None:
        self._lease = lease
        self._left = number
        self.is_late = False
        """The waiting code was about to block before it reached that instruction."""

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is BLOCKS and self._left > 0:
            self.is_late = True
            self._release()
        if frame.f_code is not WAITS:
            return None
        frame.f_trace_opcodes = True
        return self.on_instruction

    def on_instruction(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and self._left > 0:
            self._left -= 1
            if self._left == 0:
                self._release()
        return self.on_instruction

    def _release(self) -> None:
        self._left = 0
        thread = threading.Thread(target=self._lease.release)
        thread.start()
        thread.join()


def test_a_grant_at_every_instruction_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with lockfast.connect("memory://granted-between-two-reads", ttl=30.0) as client:
        lock = client.lock("a")
        for number in itertools.count(1):
            holder: list[lockfast.Lease] = []
            thread = threading.Thread(target=lambda: holder.append(lock.acquire()))  # noqa: B023
            thread.start()
            thread.join()
            release = Release(holder.pop(), number)
            before = sys.gettrace()
            sys.settrace(release.on_call)
            try:
                lease = lock.acquire()
            finally:
                sys.settrace(before)
            assert client.inspect("a").waiting_count == 0
            lease.release()
            assert not client.list(), f"after a grant at instruction {number}"
            said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
            assert not said, f"after a grant at instruction {number}"
            if release.is_late:
                assert number > 20, "the tracer found next to nothing"
                return
