"""Real processes that contend for one lock, and the orders they execute.

Each member opens the contestant's lock itself. An order is a function that is called with
that lock in the member's process; its result is sent back. Instants are CLOCK_MONOTONIC,
which all processes of a machine share.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bench.contestants import Contestant, Lockfast
from bench.rounds import in_turn

__all__ = ["Crew", "CrewError", "Hold", "Member", "acquire", "of_each", "release", "take_turns"]

ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
# Long enough to detect two holders at once, short compared with any hand-over.
HOLD_NS = 20_000

Result = TypeVar("Result")


class CrewError(Exception):
    """A member failed or did not answer in time; its figures would be meaningless."""


@dataclass(frozen=True)
class Hold:
    """One grant, from the request to just before the release."""

    requested_ns: int
    granted_ns: int
    releasing_ns: int


def acquire(lock: Contestant) -> int:
    """Acquire the lock; return the instant just after."""
    lock.acquire()
    return time.monotonic_ns()


def release(lock: Contestant) -> int:
    """Release the lock; return the instant just before."""
    releasing_ns = time.monotonic_ns()
    lock.release()
    return releasing_ns


def take_turns(lock: Contestant, *, grants: int, start_ns: int = 0) -> list[Hold]:
    """From `start_ns` on, acquire, hold briefly and release, `grants` times; return the holds."""
    time.sleep(max(0, start_ns - time.monotonic_ns()) / 1e9)
    holds = []
    for _ in range(grants):
        requested_ns = time.monotonic_ns()
        lock.acquire()
        granted_ns = releasing_ns = time.monotonic_ns()
        while releasing_ns < granted_ns + HOLD_NS:
            releasing_ns = time.monotonic_ns()
        lock.release()
        holds.append(Hold(requested_ns, granted_ns, releasing_ns))
    return holds


class Member:
    """One process of a crew."""

    def __init__(self, kind: type[Contestant], directory: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._kind = kind
        self._pipe, theirs = context.Pipe()
        # A daemon, so that an interrupted run leaves no process blocked in acquire.
        self._process = context.Process(target=_serve, args=(theirs, kind, directory), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, order: Callable[[Contestant], Result]) -> Callable[[], Result]:
        """Send an order; return a function that waits for its result. Results arrive in order."""
        self._pipe.send(order)

        def result() -> Result:
            answer: Result = self._receive()
            return answer

        return result

    def carry_out(self, order: Callable[[Contestant], Result]) -> Result:
        return self.start(order)()

    def _receive(self) -> Any:
        if not self._pipe.poll(ANSWER_TIMEOUT_S):
            raise CrewError(f"{self._kind.name}: no answer within {ANSWER_TIMEOUT_S:g} s")
        try:
            failure, answer = self._pipe.recv()
        except EOFError:
            raise CrewError(f"{self._kind.name}: a process ended unexpectedly") from None
        if failure:
            raise CrewError(f"{self._kind.name}: a process failed\n{failure}")
        return answer

    def close(self, *, grace_s: float = STOP_TIMEOUT_S) -> None:
        self._pipe.close()
        self._process.join(grace_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


class Crew:
    """`size` processes with the same lock open; ready once the block is entered."""

    def __init__(self, kind: type[Contestant], directory: Path, size: int) -> None:
        self.name = kind.name
        self.is_ours = issubclass(kind, Lockfast)
        self.has_failed = False
        self.members = [Member(kind, directory) for _ in range(size)]

    def __enter__(self) -> Self:
        # Each member acquires the lock once, so that no set-up cost is measured.
        for member in self.members:
            member.carry_out(acquire)
            member.carry_out(release)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After a failure a member may be blocked in acquire forever.
        is_fine = error is None and not self.has_failed
        for member in self.members:
            member.close(grace_s=STOP_TIMEOUT_S if is_fine else 0)


def of_each(
    crews: Sequence[Crew], rounds: int, measure: Callable[[Crew], Result]
) -> dict[str, list[Result]]:
    """Measure the crews in turn and return the results. Drop another library's crew if it fails."""
    results: dict[str, list[Result]] = {crew.name: [] for crew in crews if not crew.has_failed}
    for crew in in_turn(crews, rounds):
        if crew.has_failed:
            continue
        try:
            results[crew.name].append(measure(crew))
        except CrewError as error:
            if crew.is_ours:
                raise
            crew.has_failed = True
            del results[crew.name]
            print(f"bench: left out from here on: {error}", file=sys.stderr, flush=True)
    return results


def _serve(pipe: Connection, kind: type[Contestant], directory: Path) -> None:
    """Execute orders until the pipe is closed."""
    # Ctrl-C is handled by the parent; we end when it closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock: Contestant | None = None
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            break
        try:
            if lock is None:
                lock = kind(directory)
            answer = ("", order(lock))
        except Exception:
            answer = (traceback.format_exc(), None)
        pipe.send(answer)
    if lock is not None:
        lock.close()
