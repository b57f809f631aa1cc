"""What the flow code needs from the world: a runtime, and a store's wire and listener.

All methods that may wait are `async def`. On the threads runtime every implementation
blocks instead of suspending, so a coroutine runs from start to end in one `send`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from lockfast.core.commands import Blocker, Command, Reply, Wake


class Signal(Protocol):
    """A flag that one waiter can wait for. May be set from any thread, any number of times."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self, timeout_ms: int | None) -> bool:
        """True once set; False when `timeout_ms` passed first (None: never)."""
        ...


class Runtime(Protocol):
    """Clock, waiting, background work, randomness: all that differs between the faces."""

    def now_ms(self) -> int:
        """A clock that never goes back and counts time asleep."""
        ...

    def signal(self) -> Signal: ...

    def mutex(self) -> AbstractContextManager[Any]:
        """For a few assignments; never held while waiting for anything."""
        ...

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run in the background, on its own."""
        ...

    def random(self) -> float:
        """In [0, 1)."""
        ...

    def unique(self) -> str:
        """16 hexadecimal digits that nobody else has."""
        ...

    def actor(self) -> str:
        """Who is running now: the task, else the thread."""
        ...

    def process(self) -> int:
        """Changes when this process was forked off another."""
        ...


class Wire(Protocol):
    """A store's way to carry out commands for one kind of caller."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        """Carry out one command in one atomic step, within `timeout_ms`.

        Raises StoreUnavailableError when it surely was not carried out,
        OutcomeUnknownError when it may have been; both are safe to send again.
        """
        ...

    def close(self) -> None: ...


WAKE_DIED = "died"
"""What an listener says of a process it watched over; the wake names its session."""
WAKE_MISSED = "missed"
"""What a listener reports after it has connected: wakes sent before that are lost, so the
keeper has to check every claim, and every claim whose enter is under way."""
PROCESS_DIED = "its process died"
"""Why the session of such a process is ended."""


class WakeListener(Protocol):
    """Where wakes for one session arrive. Only its keeper listens."""

    @property
    def inbox(self) -> str:
        """Where others leave word, as stored with the session."""
        ...

    @property
    def process(self) -> str:
        """The identity of this process, as stored with the session; "" if of no use."""
        ...

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        """Wait for wakes. They are hints: whoever hears one looks for itself."""
        ...

    def interrupt(self) -> None:
        """Make `listen` return; from any thread."""
        ...

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Report the death of any of these processes, in place of those given before for `n`."""
        ...

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        """Of these, the sessions whose processes are known to have ended."""
        ...

    def close(self) -> None: ...


Deliver = Callable[[Wake], None]
"""Takes a wake that surely comes from a step of this store, so it may be believed."""


class Capabilities(NamedTuple):
    """What a store can do. What is not declared raises UnsupportedError before any I/O."""

    queue: bool = True
    contend: bool = False
    """Without a queue, claims can wait all the same: they try again and again, in no order."""
    modes: bool = True
    several: int = 128
    """How many places a claim may have."""
    priority: bool = True
    watch: bool = True
    revoke: bool = True
    retain: bool = True
    """A grant may reserve a block of tokens and be kept for later use."""
    death_watch: bool = False


class Store(Protocol):
    """Where the truth lives."""

    @property
    def label(self) -> str:
        """The URL without its password, for people."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def caller_wire(self) -> Wire:
        """For the callers of this face."""
        ...

    def keeper_wire(self) -> Wire:
        """For the keeper, on its own thread and connection."""
        ...

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener: ...

    def close(self) -> None: ...
