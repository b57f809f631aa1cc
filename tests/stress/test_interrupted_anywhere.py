"""Ctrl-C at every possible point: one run of a scenario for each point.

CPython runs signal handlers when a function starts, at the back edge of a loop, and after a call. A
tracer raises KeyboardInterrupt at the first such point of our code, at the second, and so on, until
the scenario completes without interruption.
"""

from __future__ import annotations

import dis
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import lockfast
from lockfast.core.commands import Claims, ClaimsReply
from lockfast.runtimes.threads import run
from tests.processes.crew import PATIENCE_S, until

OURS = str(Path(lockfast.__file__).parent)
SOON_S = 8.0
"""Sooner than a third of the TTL of 30 s, when a keep-alive would find and repair it."""

pytestmark = [
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="knows CPython's byte code"),
    pytest.mark.filterwarnings("ignore:.*never released:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .*never awaited:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop what a finalizer raises, as Python does. A hook that keeps it would keep our leases."""
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: None)


@functools.cache
def places(code: CodeType) -> frozenset[int]:
    """Return the instructions before which CPython may run a signal handler."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handlers(at: int) -> list[int]:
        return [entry.target for entry in table if entry.start <= at < entry.end]

    found = set()
    instructions = list(dis.get_instructions(code))
    for one, after in itertools.pairwise(instructions):
        name = one.opname
        if name == "RESUME" or (name.startswith("CALL") and "INTRINSIC" not in name):
            next_at = after.offset
        elif name == "JUMP_BACKWARD":
            next_at = one.argval
        else:
            continue
        # What is raised there belongs to the instruction just executed. The tracer raises at the
        # next one, which must make no difference.
        if handlers(one.offset) == handlers(next_at):
            found.add(next_at)
    return frozenset(found)


class Interruption:
    """Raises KeyboardInterrupt in this thread, at the n-th point of our code."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where = ""
        # CPython 3.11 only borrows the trace function while it calls it. Keep both alive: a run
        # once ended with "'traceback' object is not callable".
        self._entering, self._stepping = self._enter, self._step

    @contextmanager
    def lurking(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._entering)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        return self._stepping

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and not self.where and frame.f_lasti in places(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._stepping


# ── stories ──────────────────────────────────────────────────────────────────────────

Act = Callable[[], object]
Story = Callable[[lockfast.Client], tuple[Act, Act]]
"""What is interrupted, and what must be done after it."""


def nothing() -> None: ...


def in_a_block(client: lockfast.Client) -> tuple[Act, Act]:
    def act() -> None:
        with client.lock("a"):
            pass

    return act, nothing


def by_hand(client: lockfast.Client) -> tuple[Act, Act]:
    lock = client.lock("a")

    def act() -> None:
        lease = lock.acquire()
        lease.release()

    return act, nothing


def entered_again(client: lockfast.Client) -> tuple[Act, Act]:
    def act() -> None:
        lock = client.lock("a", reentrant=True)
        with lock:
            with lock:
                pass

    return act, nothing


def taken_already(client: lockfast.Client) -> tuple[Act, Act]:
    holder = client.lock("a").acquire()
    return lambda: client.lock("a").try_acquire(), holder.release


def waiting_in_vain(client: lockfast.Client) -> tuple[Act, Act]:
    holder = client.lock("a").acquire()

    def act() -> None:
        # In so short a time the keeper may not even have released the store's mutex.
        with suppress(lockfast.AcquireTimeoutError, lockfast.StoreUnavailableError):
            client.lock("a").acquire(timeout=0.002)

    return act, holder.release


def waiting_for_another(client: lockfast.Client) -> tuple[Act, Act]:
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with client.lock("a"):
            held.set()
            enough.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE_S)

    def act() -> None:
        threading.Timer(0.003, enough.set).start()
        lease = client.lock("a").acquire()
        lease.release()

    def clean() -> None:
        enough.set()
        holder.join(PATIENCE_S)
        assert not holder.is_alive()

    return act, clean


def making_way(client: lockfast.Client) -> tuple[Act, Act]:
    """Another claim waits for what we release: it must be woken, whatever happens to us."""
    leases = [client.lock("a").acquire()]
    waiter = threading.Thread(target=lambda: client.lock("a").acquire().release())
    waiter.start()
    until(lambda: client.inspect("a").waiting_count == 1, "the other waits")

    def clean() -> None:
        waiter.join(SOON_S)
        assert not waiter.is_alive(), "the waiter was not told"

    return lambda: leases.pop().release(), clean


STORIES = [
    in_a_block,
    by_hand,
    entered_again,
    taken_already,
    waiting_in_vain,
    waiting_for_another,
    making_way,
]


def claims_of(client: lockfast.Client) -> int:
    found = 0
    for session in client._core.sessions():
        reply = run(client._core.request(Claims(session.id)))
        found += len(reply.claims) if isinstance(reply, ClaimsReply) else 0
    return found


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_nothing_is_left(url: str, story: Story) -> None:
    """Wherever it is raised, every claim is released soon and nothing stays locked."""
    with lockfast.connect(url, ttl=30.0) as client:
        client.lock("warm").acquire().release()
        for number in itertools.count(1):
            interruption = Interruption(number)
            act, clean = story(client)
            try:
                with suppress(KeyboardInterrupt), interruption.lurking():
                    act()
            finally:
                del act
                clean()
            until(
                lambda: not claims_of(client) and not client.list(),
                f"all is given back after Ctrl-C at {interruption.where}",
                SOON_S,
            )
            if not interruption.where:
                assert number > 100, "the tracer found next to nothing"
                return


def test_first_lock_of_a_client(quick_path: Path) -> None:
    """The first lock opens a session: a thread and descriptors, which must not stay either."""
    url = f"sqlite://{quick_path}/locks.db"
    with lockfast.connect(url) as other:  # so that the database itself stays open
        other.list()
        before = footprint()
        for number in itertools.count(1):
            client = lockfast.connect(url)
            interruption = Interruption(number)
            with suppress(KeyboardInterrupt), interruption.lurking():
                with client.lock("a"):
                    pass
            client.close()
            del client
            until(
                lambda: footprint() <= before and not other.list(),
                f"{footprint()} shrinks to {before} after Ctrl-C at {interruption.where}",
                SOON_S,
            )
            if not interruption.where:
                return


def footprint() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))
