"""The simulator's runtime: virtual time on asimpy's Environment, behind the Runtime port.

The only file that knows asimpy. One tick is a microsecond of virtual time; code takes no
time, only waiting does. Of asimpy only the clock and the queues of instants are used: its
processes throw an `Exception` to interrupt, which a retry loop swallows, and share events
among waiters. The loop over the queues is our own: asimpy's calls what is due before the
clock shows its instant, and a simulation spends its time here.

A host is a machine with clocks of its own. *Paused*, its tasks stand still and its clocks
go on, as with SIGSTOP or a long garbage collection. *Crashed*, its tasks are dropped: their
`finally` blocks do run, because Python runs them at some time anyway, but every port of a
dead host raises `Crashed`, so nothing they do gets out, as with SIGKILL.
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
"""Ticks in a millisecond."""
EPOCH_US: Final = 1_700_000_000_000_000
"""What every wall clock shows at tick 0, unless told otherwise."""
STEPS_PER_INSTANT_MAX: Final = 200_000

_MILLION: Final = 1_000_000
_NEVER: Final = 1 << 62
_MUTEX: Final = RLock()


class Cancelled(BaseException):
    """Thrown into a task that is to stop."""


class Crashed(BaseException):
    """Raised by every port of a dead host."""


class LivelockError(RuntimeError):
    """Tasks kept waking each other and virtual time stood still."""


def waiting(
    function: Callable[P, Generator[None, None, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make an `async def` of a generator: a bare `yield` gives control back to the kernel.

    A simulation waits all the time, and another awaitable below each wait is not free.
    """
    return types.coroutine(function)  # type: ignore[return-value]


class _Stop(BaseException):
    """Ends a run of the environment before its time."""


class Kernel:
    """Virtual time, and whose turn it is."""

    def __init__(self, seed: int | str = 0) -> None:
        self.seed = seed
        self.random = random.Random(f"lockfast {seed}")
        self.current: Task[Any] | None = None
        self.now = 0
        """The tick of this instant."""
        self._env = env = Environment()
        self.queue: list[tuple[int, int, Host | None, Callable[[], object]]] = env._heap
        """What is due when, in which order, on which machine (or none), and what it is.

        In order, as a heap may be: the queue is short, and to take the first costs nothing.
        """
        self.serial = count()
        """Those of one instant are called in the order of their numbers."""
        self._runs = 0
        self.ready: deque[Callable[[], object]] = env._ready
        """What is to be called at this instant, in order."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Call back at this instant, after everything that is due before."""
        self.ready.append(callback)

    def at(self, tick: int, callback: Callable[[], object]) -> None:
        """Call back at an instant. Those of one instant are called in the order given."""
        insort(self.queue, (max(tick, self.now), next(self.serial), None, callback))

    def after(self, ticks: int, callback: Callable[[], object]) -> None:
        """Call back so many ticks from now."""
        insort(self.queue, (self.now + ticks, next(self.serial), None, callback))

    def arrive(self, ticks: int, host: Host, callback: Callable[[], object]) -> None:
        """Have something arrive at a machine so many ticks from now: it finds it at work, or
        paused (then it is done when it goes on), or dead."""
        insort(self.queue, (self.now + ticks, next(self.serial), host, callback))

    def run(self, until: int | None = None) -> None:
        """Let time pass: until there is nothing left to do, or up to an instant."""
        run = self._begin_run()
        if until is not None:
            # The environment's own `until` would leave the clock at the last event.
            self.at(until, lambda: self._end_run(run))
        self._run()

    def run_until_done(self, task: Task[T], limit: int | None = None) -> T:
        """Run until a task has ended and return what it returned, or raise what it raised.

        Raises TimeoutError when it has not ended by tick `limit`, or nothing is left to do.
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
        """End the present run at this instant; for callbacks, not for tasks."""
        raise _Stop

    def disband(self) -> None:
        """Nothing is to happen any more."""
        self.queue.clear()
        self.ready.clear()

    def _begin_run(self) -> int:
        self._runs += 1
        return self._runs

    def _end_run(self, run: int) -> None:
        # What would have ended an earlier run is still in the queue and means nothing.
        if run == self._runs:
            raise _Stop

    def _run(self) -> None:
        env, queue, ready = self._env, self.queue, self.ready
        take = ready.popleft
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


class Task(Generic[T]):
    """A coroutine on a host, driven by `send`."""

    __slots__ = (
        "_armed",
        "_callbacks",
        "_coroutine",
        "_due",
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
        """When to go on at the latest,"""
        self._armed: list[int] = []
        """and the instants at which it is looked whether that is due, the earliest last."""
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
        """Have it go on, if it is waiting."""
        if self._parked:
            self._parked = False
            self._due = _NEVER
            self._kernel.ready.append(self._go)

    def wake_after(self, span_us: int, clock: Clock) -> None:
        """Have it go on after a span of a clock's time, if it is still waiting; for a task
        that is about to park.

        Most waits end long before. So nothing is taken out of the queue for them, and a later
        instant is not put in as long as an earlier one is there to look at it.
        """
        armed = self._armed
        if clock.rate_ppm:
            span_us = clock.ticks_for(span_us)
        kernel = self._kernel
        self._due = tick = kernel.now + (span_us if span_us > 0 else 1)
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
        """Throw `Cancelled` in where it waits."""
        if not self.done:
            self._thrown = Cancelled(self.name)
            self.wake()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back when it has ended."""
        if self.done:
            self.host.kernel.soon(callback)
        else:
            self._callbacks.append(callback)

    async def join(self) -> T:
        """Wait for its end; its outcome is the caller's."""
        kernel = self.host.kernel
        waiter = kernel.current
        assert waiter is not None, "only a task can wait"
        while not self.done:
            signal = waiter.host.signal()
            self._callbacks.append(signal.set)
            await signal.wait(None)
        return self.result()

    def result(self) -> T:
        """What it returned; raises what it raised."""
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
                # It was cancelled in the very step that brought it to where it waits.
                self.wake()
        finally:
            kernel.current = None

    def drop(self) -> None:
        """Its host is dead: it never runs again."""
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
        # Bound methods of its own, which would keep it from being collected at once.
        self._go = self._look = _nothing
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self.host.kernel.soon(callback)


class SimSignal:
    """One task's flag."""

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
    """A host's two clocks: one that only goes forward, and a wall clock that may jump."""

    __slots__ = ("_kernel", "_local_us", "_since", "_wall_ahead_us", "ahead_us", "rate_ppm")

    def __init__(self, kernel: Kernel, started_us: int = 0, wall_us: int = EPOCH_US) -> None:
        self._kernel = kernel
        self._since = kernel.now
        self._local_us = started_us
        self.ahead_us = started_us - self._since
        """What it shows at tick 0, counted back at its rate when that is true."""
        self.rate_ppm = 0
        self._wall_ahead_us = wall_us - started_us

    def local_us(self) -> int:
        """Since it was switched on, by its own count."""
        now = self._kernel.now
        if not self.rate_ppm:
            return now + self.ahead_us
        passed = now - self._since
        return self._local_us + passed + passed * self.rate_ppm // _MILLION

    def wall_us(self) -> int:
        return self.local_us() + self._wall_ahead_us

    def both(self) -> tuple[int, int]:
        """`now_ms` and `wall_us` of this instant."""
        if self.rate_ppm:
            local_us = self.local_us()
        else:
            local_us = self._kernel.now + self.ahead_us
        return local_us // MS, local_us + self._wall_ahead_us

    def drift(self, rate_ppm: int) -> None:
        """From now on run fast (or slow) by so many millionths."""
        self._local_us = self.local_us()
        self._since = self._kernel.now
        self.ahead_us = self._local_us - self._since
        self.rate_ppm = rate_ppm

    def jump(self, ahead_us: int) -> None:
        """Set the wall clock forward, or back."""
        self._wall_ahead_us += ahead_us

    def ticks_for(self, span_us: int) -> int:
        """How many true ticks pass while this clock counts a span, at least one."""
        if self.rate_ppm:
            span_us = -(-span_us * _MILLION // (_MILLION + self.rate_ppm))
        return span_us if span_us > 0 else 1

    def tick_when(self, local_us: int) -> int:
        """The true tick at which it shows this, if its rate stays (or was) as it is."""
        span_us = local_us - self._local_us
        if self.rate_ppm:
            span_us = -(-span_us * _MILLION // (_MILLION + self.rate_ppm))
        return self._since + span_us


class Host:
    """A machine, and the Runtime port of the code on it."""

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
        """What would have run while it was paused, in order."""
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
        # Tasks change places only where they wait, and nobody waits with a mutex held: so one
        # does for all. (It costs less than a context that does nothing.)
        return _MUTEX

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self.start(job(), name)
        task.on_done(lambda: _raise_if_failed(task))

    def chance(self) -> random.Random:
        """This machine's own randomness."""
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
        """Run a coroutine here; whoever starts it looks at its outcome."""
        if self.dead:
            coroutine.close()
            raise Crashed(self.name)
        task = Task(self, coroutine, name)
        self._tasks[task] = None
        return task

    @waiting
    def sleep(self, ms: float) -> Generator[None, None, None]:
        """Let a span of this host's time pass."""
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
        """Drop all that runs here."""
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
        """Be there again, with nothing left from before but the clocks."""
        assert self.dead
        self.dead = False
        self._lives += 1

    def forget(self, task: Task[Any]) -> None:
        self._tasks.pop(task, None)


def _nothing() -> None:
    """What is left to do for a task that is done."""


def _raise_if_failed(task: Task[Any]) -> None:
    """Background work has nobody to tell: its failure ends the run."""
    if task.error is not None and not isinstance(task.error, Crashed | Cancelled):
        raise task.error
