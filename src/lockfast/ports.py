"""The interfaces that the flow code depends on: runtime, store, wire and wake listener.

Every method that may wait is `async def`. In the threads runtime, implementations block
instead of suspending, so that a single `send` runs a coroutine to completion.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from lockfast.core.commands import PLACES_MAX, Blocker, Command, Reply, Wake
from lockfast.core.placement import Placement


class Signal(Protocol):
    """A flag for a single waiter. Any thread may set it, any number of times."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self, timeout_ms: int | None) -> bool:
        """Wait for the flag. Return False if `timeout_ms` elapses first (None: no timeout)."""
        ...


class Runtime(Protocol):
    """Clock, waiting, background jobs and randomness, which differ between runtimes."""

    def now_ms(self) -> int:
        """Read a monotonic clock that also advances while the machine is suspended."""
        ...

    def now_us(self) -> int:
        """Read the same clock in microseconds, to measure durations for observers."""
        ...

    def signal(self) -> Signal: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Create a mutex. Hold it for a few assignments only, never across I/O or a wait."""
        ...

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run `job` in the background."""
        ...

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        ...

    def unique(self) -> str:
        """Return a globally unique id of 16 hexadecimal digits."""
        ...

    def actor(self) -> str:
        """Return the id of the current task, or of the current thread if there is no task."""
        ...

    def process(self) -> int:
        """Return an id of this process that differs between a parent and its forked child."""
        ...


class Wire(Protocol):
    """Executes commands on a store, for either API callers or the keeper."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        """Execute one command atomically, within `timeout_ms`.

        Raises StoreUnavailableError if the store certainly did not execute it, and
        OutcomeUnknownError if it may have. It is safe to resend the command in both cases.
        """
        ...

    def close(self) -> None: ...


WAKE_DIED = "died"
"""A wake of a listener: a watched process has exited. The wake names its session."""
WAKE_MISSED = "missed"
"""A wake of a listener that has just connected: earlier wakes are lost, so the keeper must
check every claim, including those whose `Enter` is still in flight."""
WAKE_DISCONNECTED = "disconnected"
"""A wake of a listener whose connection also carries the keep-alives: it is broken, so leases are
uncertain until a keep-alive succeeds, and wakes may be lost as with WAKE_MISSED."""
PROCESS_DIED = "its process died"
"""The reason recorded when a session is expelled because its process has exited."""


class WakeListener(Protocol):
    """Receives the wakes of one session. Only the session's keeper calls `listen`."""

    @property
    def inbox(self) -> str:
        """The address to which the store sends this session's wakes, as stored with it."""
        ...

    @property
    def process(self) -> str:
        """The identity of this process, as stored with the session; "" without death watch."""
        ...

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        """Wait for wakes. A wake is only a hint: the keeper must ask the store for the state."""
        ...

    def interrupt(self) -> None:
        """Make `listen` return. May be called from any thread."""
        ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Report when one of these processes exits; replaces the earlier list for claim `n`."""
        ...

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        """Return the sessions of `blockers` whose processes are known to have exited."""
        ...

    def close(self) -> None: ...


Deliver = Callable[[Wake], None]
"""Accepts a wake that comes straight from a step of this store, so it needs no check."""


class Capabilities(NamedTuple):
    """What a store supports. Anything else raises UnsupportedError before any I/O."""

    queue: bool = True
    contend: bool = False
    """The store has no queue, but a claim can wait by retrying, in no particular order."""
    modes: bool = True
    several: int = PLACES_MAX
    """The largest number of places in one claim."""
    priority: bool = True
    watch: bool = True
    revoke: bool = True
    retain: bool = True
    """A grant may reserve a block of tokens, and the client may retain it for later use."""
    death_watch: bool = False


class Store(Protocol):
    """The system that holds the authoritative lock table."""

    @property
    def label(self) -> str:
        """The URL without its password, for messages and logs."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def caller_wire(self) -> Wire:
        """Create the wire for API calls, in the blocking or asyncio flavour of this client."""
        ...

    def keeper_wire(self) -> Wire:
        """Create the wire for a keeper, which has its own thread and connection."""
        ...

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        """Create the listener of a session, before the session is opened.

        If `listens_for_all` is an attribute of the store and true, session="" creates a listener
        for a server: it receives the wakes of every session opened with its inbox, and may
        receive those of others. A wake that names no session tells that wakes may be lost.
        """
        ...

    def close(self) -> None: ...


def placement_of(store: Store) -> Placement | None:
    """Return how a store spreads names over shards; None if it has only one.

    A sharded store has an attribute `placement`. Its clients open a session per shard, with an
    id that `Placement.session_id` made.
    """
    placement: Placement | None = getattr(store, "placement", None)
    return placement


@runtime_checkable
class StoreWithRuntime(Protocol):
    """A store whose clients must use its runtimes, because it has a clock of its own."""

    def runtime(self, face: Literal["threads", "asyncio"]) -> Runtime: ...
