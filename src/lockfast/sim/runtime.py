"""The simulator's runtime: virtual time on asimpy's Environment, behind the Runtime port.

This is the only file that imports asimpy. One tick is a microsecond of virtual time; running
code takes no time, only waiting does. Only asimpy's clock and its queues of events are used: its
processes are interrupted by an `Exception`, which a retry loop swallows, and its waiters share
events. The loop over the queues is our own, because asimpy calls a callback before the clock
shows its time, and because a simulation spends most of its time there.

A host is a machine with its own clocks. While it is *paused*, its tasks do not run but its clocks
go on, as with SIGSTOP or a long garbage collection. When it *crashes*, its tasks are discarded.
Their `finally` blocks do run, because Python runs them sooner or later, but every port of a
crashed host raises `Crashed`, so that they have no effect, as with SIGKILL.
"""

from __future__ import annotations

import random
import types
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from itertools import count
from threading import RLock
from typing import Any, Final, Generic, ParamSpec, TypeVar

from asimpy import Environment

T = TypeVar("T")
P = ParamSpec("P")

MS: Final = 1000
"""Ticks per millisecond."""
EPOCH_US: Final = 1_700_000_000_000_000
"""The wall-clock time at tick 0, by default."""
STEPS_PER_INSTANT_MAX: Final = 200_000
EMPTY_WAITS_MAX: Final = 200
"""A task that waits for no time this often in a row is busy: on a real machine it would occupy a
core."""

_MILLION: Final = 1_000_000
_NEVER: Final = 1 << 62
_MUTEX: Final = RLock()


class Cancelled(BaseException):
    """Thrown into a task to cancel it."""


class Crashed(BaseException):
    """Raised by every port of a crashed host."""


class LivelockError(RuntimeError):
    """The simulation does not end: tasks wake each other, or retry, again and again."""


def waiting(
    function: Callable[P, Generator[None, None, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Turn a generator into an `async def`: a bare `yield` returns control to the kernel.

    Simulations wait often, and an additional awaitable for each wait costs time.
    """
    return types.coroutine(function)  # type: ignore[return-value]


class _Stop(BaseException):
    """Stops a run of the environment early."""


class Kernel:
    """Virtual time, and the order in which tasks and callbacks run."""

    def __init__(self, seed: int | str = 0) -> None:
        self.seed = seed
        self.random = random.Random(f"lockfast {seed}")
        self.current: Task[Any] | None = None
        self.now = 0
        """The current tick."""
        self._env = env = Environment()
        self.queue: list[tuple[int, int, Host | None, Callable[[], object]]] = env._heap
        """Scheduled callbacks: tick, sequence number, host (or none), callback.

        Kept sorted instead of as a heap: the queue is short, and taking the first is cheap.
        """
        self.serial = count()
        """Orders the callbacks of one tick."""
        self.steps = 0
        """How many scheduled callbacks have run."""
        self.steps_max = _NEVER
        """A run with more steps raises LivelockError."""
        self._runs = 0
        self.ready: deque[Callable[[], object]] = env._ready
        """The callbacks due at the current tick, in order."""
        self.busy: dict[str, int] = {}
        """Tasks that were busy instead of waiting, and since which tick."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Call back at the current tick, after all callbacks already due."""
        self.ready.append(callback)

    def at(self, tick: int, callback: Callable[[], object]) -> None:
        """Call back at a tick. Callbacks of one tick run in the order of these calls."""
        insort(self.queue, (max(tick, self.now), next(self.serial), None, callback))

    def after(self, ticks: int, callback: Callable[[], object]) -> None:
        """Call back after this many ticks."""
        insort(self.queue, (self.now + ticks, next(self.serial), None, callback))

    def arrive(self, ticks: int, host: Host, callback: Callable[[], object]) -> None:
        """Deliver to a host after this many ticks: at once if the host runs, when it resumes
        if it is paused, not at all if it has crashed."""
        insort(self.queue, (self.now + ticks, next(self.serial), host, callback))

    def run(self, until: int | None = None) -> None:
        """Advance time until nothing is scheduled any more, or up to a tick."""
        run = self._begin_run()
        if until is not None:
            # The environment's own `until` leaves the clock at the last event.
            self.at(until, lambda: self._end_run(run))
        self._run()

    def run_until_done(self, task: Task[T], limit: int | None = None) -> T:
        """Run until a task ends. Return its result, or raise its exception.

        Raises TimeoutError if it has not ended by tick `limit` or nothing is scheduled.
        """
        run = self._begin_run()
        if limit is not None:
            self.at(limit, lambda: self._end_run(run))
        task.on_done(lambda: self._end_run(run))
        self._run()
        if not task.done:
            raise TimeoutError(f"task {task.name} has not ended at {self.now / _MILLION:.3f} s")
        return task.result()

    def stop(self) -> None:
        """Stop the current run; for callbacks, not for tasks."""
        raise _Stop

    def disband(self) -> None:
        """Discard everything that is scheduled."""
        self.queue.clear()
        self.ready.clear()

    def _begin_run(self) -> int:
        self._runs += 1
        return self._runs

    def _end_run(self, run: int) -> None:
        # The stop of an earlier run may still be in the queue; ignore it.
        if run == self._runs:
            raise _Stop

    def _run(self) -> None:
        env, queue, ready = self._env, self.queue, self.ready
        take = ready.popleft
        steps, steps_max = self.steps, self.steps_max
        try:
            while True:
                left = STEPS_PER_INSTANT_MAX
                while ready:
                    take()()
                    left -= 1
                    if not left:
                        raise LivelockError(f"{STEPS_PER_INSTANT_MAX} steps at {self.now} µs")
                if not queue:
                    return
                steps += 1
                if steps > steps_max:
                    raise LivelockError(f"it did not end within {steps_max:,} steps")
                tick, _, host, callback = queue.pop(0)
                self.now = env._now = tick
                if host is None:
                    callback()
                elif host.paused:
                    host.backlog.append(callback)
                elif not host.dead:
                    callback()
        except _Stop:
            pass
        finally:
            self.steps = steps


class Task(Generic[T]):
    """A coroutine on a host, driven by `send`."""

    __slots__ = (
        "_armed",
        "_callbacks",
        "_coroutine",
        "_due",
        "_empty_waits",
        "_error",
        "_go",
        "_kernel",
        "_look",
        "_parked",
        "_result",
        "_thrown",
        "done",
        "host",
        "name",
    )

    def __init__(self, host: Host, coroutine: Coroutine[Any, Any, T], name: str) -> None:
        self.host = host
        self.name = name
        self.done = False
        self._kernel = host.kernel
        self._due = _NEVER
        """The tick at which to continue at the latest."""
        self._armed: list[int] = []
        """The ticks at which the kernel checks whether that is due, the earliest last."""
        self._empty_waits = 0
        self._coroutine = coroutine
        self._thrown: BaseException | None = None
        self._parked = True
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._go: Callable[[], None] = self._step
        self._look: Callable[[], None] = self._ring
        self.wake()

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.host.name}>"

    def wake(self) -> None:
        """Resume the task if it waits."""
        if self._parked:
            self._parked = False
            self._due = _NEVER
            self._kernel.ready.append(self._go)

    def wake_after(self, span_us: int, clock: Clock) -> None:
        """Resume the task after a time by its clock, if it still waits; called by a task that
        is about to wait.

        Most waits end much earlier. So a check is never removed from the queue, and no later
        check is added while an earlier one is scheduled.
        """
        armed = self._armed
        if clock.rate_ppm:
            span_us = clock.ticks_for(span_us)
        kernel = self._kernel
        if span_us > 0:
            self._empty_waits = 0
        else:
            span_us = 1
            self._empty_waits += 1
            if self._empty_waits == EMPTY_WAITS_MAX:
                kernel.busy.setdefault(f"{self.name} on {self.host.name}", kernel.now)
        self._due = tick = kernel.now + span_us
        if not armed or tick < armed[-1]:
            armed.append(tick)
            insort(kernel.queue, (tick, next(kernel.serial), None, self._look))

    def _ring(self) -> None:
        kernel = self._kernel
        armed, due = self._armed, self._due
        armed.pop()
        if due <= kernel.now:
            self.wake()
        elif due is not _NEVER and (not armed or due < armed[-1]):
            armed.append(due)
            insort(kernel.queue, (due, next(kernel.serial), None, self._look))

    def cancel(self) -> None:
        """Throw `Cancelled` into the task where it waits."""
        if not self.done:
            self._thrown = Cancelled(self.name)
            self.wake()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back when the task has ended."""
        if self.done:
            self.host.kernel.soon(callback)
        else:
            self._callbacks.append(callback)

    async def join(self) -> T:
        """Wait until the task ends. Return its result, or raise its exception."""
        kernel = self.host.kernel
        waiter = kernel.current
        assert waiter is not None, "only a task can wait"
        while not self.done:
            signal = waiter.host.signal()
            self._callbacks.append(signal.set)
            await signal.wait(None)
        return self.result()

    def result(self) -> T:
        """Return the result of the task, or raise its exception."""
        assert self.done, f"{self} is still at work"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    @property
    def error(self) -> BaseException | None:
        return self._error

    def _step(self) -> None:
        if self.done:
            return
        host = self.host
        if host.paused:
            host.backlog.append(self._go)
            return
        kernel = self._kernel
        kernel.current = self
        thrown = self._thrown
        try:
            if thrown is None:
                self._coroutine.send(None)
            else:
                self._thrown = None
                self._coroutine.throw(thrown)
        except StopIteration as finished:
            self._result = finished.value
            self._end()
        except (Exception, Cancelled, Crashed) as error:
            self._error = error
            self._end()
        else:
            self._parked = True
            if self._thrown is not None:
                # It was cancelled in the same step in which it began to wait.
                self.wake()
        finally:
            kernel.current = None

    def drop(self) -> None:
        """Discard the task, because its host has crashed."""
        if self.done:
            return
        self._parked = False
        self.done = True
        self._error = Crashed(self.name)
        self._due = _NEVER
        try:
            self._coroutine.close()
        except Crashed:
            pass
        self._tell()

    def _end(self) -> None:
        self.done = True
        self.host.forget(self)
        self._tell()

    def _tell(self) -> None:
        # Its own bound methods are reference cycles, which would delay its collection.
        self._go = self._look = _nothing
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self.host.kernel.soon(callback)


class SimSignal:
    """A flag that one task waits for."""

    __slots__ = ("_host", "_is_set", "_waiter")

    def __init__(self, host: Host) -> None:
        self._host = host
        self._is_set = False
        self._waiter: Task[Any] | None = None

    def set(self) -> None:
        self._is_set = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            waiter.wake()

    def is_set(self) -> bool:
        return self._is_set

    def clear(self) -> None:
        self._is_set = False

    @waiting
    def wait(self, timeout_ms: int | None) -> Generator[None, None, bool]:
        host = self._host
        if host.dead:
            raise Crashed(host.name)
        if self._is_set:
            return True
        task = host.kernel.current
        assert task is not None, "only a task can wait"
        assert self._waiter is None, "a signal has one waiter"
        self._waiter = task
        if timeout_ms is not None:
            task.wake_after(timeout_ms * MS, host.clock)
        try:
            yield
        finally:
            self._waiter = None
        return self._is_set


class Clock:
    """The two clocks of a host: a monotonic clock, and a wall clock that may jump."""

    __slots__ = ("_kernel", "_local_us", "_since", "_wall_ahead_us", "ahead_us", "rate_ppm")

    def __init__(self, kernel: Kernel, started_us: int = 0, wall_us: int = EPOCH_US) -> None:
        self._kernel = kernel
        self._since = kernel.now
        self._local_us = started_us
        self.ahead_us = started_us - self._since
        """The time it would have shown at tick 0 at its current rate."""
        self.rate_ppm = 0
        self._wall_ahead_us = wall_us - started_us

    def local_us(self) -> int:
        """The time since the host was switched on, by this clock."""
        now = self._kernel.now
        if not self.rate_ppm:
            return now + self.ahead_us
        passed = now - self._since
        return self._local_us + passed + passed * self.rate_ppm // _MILLION

    def wall_us(self) -> int:
        return self.local_us() + self._wall_ahead_us

    def both(self) -> tuple[int, int]:
        """Return the current `now_ms` and `wall_us`."""
        if self.rate_ppm:
            local_us = self.local_us()
        else:
            local_us = self._kernel.now + self.ahead_us
        return local_us // MS, local_us + self._wall_ahead_us

    def drift(self, rate_ppm: int) -> None:
        """Run fast or slow by this many parts per million from now on."""
        self._local_us = self.local_us()
        self._since = self._kernel.now
        self.ahead_us = self._local_us - self._since
        self.rate_ppm = rate_ppm

    def jump(self, ahead_us: int) -> None:
        """Set the wall clock forward or back."""
        self._wall_ahead_us += ahead_us

    def ticks_for(self, span_us: int) -> int:
        """Return how many ticks pass while this clock counts a time, at least one."""
        if self.rate_ppm:
            span_us = -(-span_us * _MILLION // (_MILLION + self.rate_ppm))
        return span_us if span_us > 0 else 1

    def tick_when(self, local_us: int) -> int:
        """Return the tick at which the clock shows this time, at its current rate."""
        span_us = local_us - self._local_us
        if self.rate_ppm:
            span_us = -(-span_us * _MILLION // (_MILLION + self.rate_ppm))
        return self._since + span_us


class Host:
    """A machine, and the Runtime port for the code that runs on it."""

    __slots__ = (
        "_lives",
        "_random",
        "_tasks",
        "backlog",
        "clock",
        "dead",
        "kernel",
        "name",
        "paused",
    )

    def __init__(self, kernel: Kernel, name: str, *, started_us: int = 0) -> None:
        self.kernel = kernel
        self.name = name
        self.clock = Clock(kernel, started_us)
        self.paused = False
        self.dead = False
        self.backlog: list[Callable[[], object]] = []
        """Callbacks that became due while the host was paused, in order."""
        self._tasks: dict[Task[Any], None] = {}
        self._lives = 1
        self._random: random.Random | None = None

    def __repr__(self) -> str:
        return f"<Host {self.name}>"

    # ── the Runtime port ─────────────────────────────────────────────────────────────

    def now_ms(self) -> int:
        clock = self.clock
        if not clock.rate_ppm:
            return (self.kernel.now + clock.ahead_us) // MS
        return clock.local_us() // MS

    def now_us(self) -> int:
        return self.clock.local_us()

    def signal(self) -> SimSignal:
        return SimSignal(self)

    def mutex(self) -> AbstractContextManager[Any]:
        # Tasks switch only where they wait, and no task waits with a mutex held: so one mutex
        # is enough for all. It costs less than a context manager that does nothing.
        return _MUTEX

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self.start(job(), name)
        task.on_done(lambda: _raise_if_failed(task))

    def chance(self) -> random.Random:
        """Random numbers of this host."""
        if self._random is None:
            self._random = random.Random(f"{self.kernel.seed} {self.name}")
        return self._random

    def random(self) -> float:
        return self.chance().random()

    def unique(self) -> str:
        return f"{self.chance().getrandbits(64):016x}"

    def actor(self) -> str:
        task = self.kernel.current
        return task.name if task is not None else "main"

    def process(self) -> int:
        return self._lives

    # ── the machine ──────────────────────────────────────────────────────────────────

    def start(self, coroutine: Coroutine[Any, Any, T], name: str) -> Task[T]:
        """Run a coroutine on this host; the caller must examine its outcome."""
        if self.dead:
            coroutine.close()
            raise Crashed(self.name)
        task = Task(self, coroutine, name)
        self._tasks[task] = None
        return task

    @waiting
    def sleep(self, ms: float) -> Generator[None, None, None]:
        """Wait for a time by this host's clock."""
        if self.dead:
            raise Crashed(self.name)
        task = self.kernel.current
        assert task is not None, "only a task can sleep"
        task.wake_after(int(ms * MS), self.clock)
        yield

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        backlog, self.backlog = self.backlog, []
        for callback in backlog:
            self.kernel.soon(callback)

    def crash(self) -> None:
        """Crash: discard all tasks."""
        self.dead = True
        self.paused = False
        self.backlog.clear()
        tasks, self._tasks = self._tasks, {}
        current, self.kernel.current = self.kernel.current, None
        assert current not in tasks, "a host does not crash by itself"
        for task in tasks:
            task.drop()
        self.kernel.current = current

    def restart(self) -> None:
        """Restart: only the clocks survive."""
        assert self.dead
        self.dead = False
        self._lives += 1

    def forget(self, task: Task[Any]) -> None:
        self._tasks.pop(task, None)


def _nothing() -> None:
    """Clean up after a task that has ended."""


def _raise_if_failed(task: Task[Any]) -> None:
    """End the run if a background task failed, because no caller would see the error."""
    if task.error is not None and not isinstance(task.error, Crashed | Cancelled):
        raise task.error
