"""The port between the ZooKeeper store and the network.

The store's own code opens no socket, reads no clock and draws no random number. It uses a
`Network`, of which there are three: kazoo for blocking callers, kazoo for asyncio, and a model of
ZooKeeper in the simulator.

A `Link` is one ZooKeeper session. Requests submitted to a link are executed in that order,
whichever thread submits them; a request that timed out may still be executed, but never after one
that was submitted later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from lockfast.ports import Signal
from lockfast.stores.derived.machine import Machine

# ── requests ─────────────────────────────────────────────────────────────────────────


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False
    container: bool = False
    """The server deletes the node some time after its last child."""
    sequence: bool = False
    """The server appends a number to the name: how many nodes were created below the parent before.
    """


class Delete(NamedTuple):
    """Fails if the node has children, so it also checks that there are none."""

    path: str
    version: int = -1


class Set(NamedTuple):
    path: str
    data: bytes
    version: int = -1


class Check(NamedTuple):
    """Check that the node has this data version; -1: that it exists."""

    path: str
    version: int = -1


class Get(NamedTuple):
    path: str
    watch: bool = False


class Children(NamedTuple):
    """Read the names of a node's children, and its stat."""

    path: str


class Exists(NamedTuple):
    path: str
    watch: bool = False


class Sync(NamedTuple):
    """Later reads on this link are no older than this request."""

    path: str


Operation: TypeAlias = Create | Delete | Set | Check


class Multi(NamedTuple):
    """All operations or none."""

    operations: tuple[Operation, ...]


Request: TypeAlias = Create | Delete | Set | Get | Children | Exists | Sync | Multi

# ── answers ──────────────────────────────────────────────────────────────────────────

NO_NODE, NODE_EXISTS, BAD_VERSION, NOT_EMPTY = "NoNode", "NodeExists", "BadVersion", "NotEmpty"
NO_AUTH, OTHER = "NoAuth", "Other"


class Stat(NamedTuple):
    mzxid: int
    mtime_ms: int
    version: int
    children: int = 0
    czxid: int = 0
    """The write that created the node: distinguishes it from earlier nodes of the same name."""


class Answer(NamedTuple):
    """The reply to one request."""

    error: str = ""
    """"" or one of the constants above; for a multi, the error of the operation that failed."""
    data: bytes = b""
    stat: Stat | None = None
    children: tuple[str, ...] = ()
    stats: tuple[Stat | None, ...] = ()
    """For a multi: one per operation, set for `Set` only."""
    failed: int = -1
    """For a multi: the index of the operation that failed."""
    numbered: tuple[str, ...] = ()
    """For a multi: the names of the nodes that were created with a sequence number."""


class LinkLostError(Exception):
    """The ZooKeeper session has ended, and with it all its ephemeral nodes."""


class Flight(Protocol):
    """Requests in flight; see `Waiting`."""


OnEvent: TypeAlias = Callable[[str], None]
"""Called with the path of a watched node that changed, or with "" if all watches are lost."""
OnAnswer: TypeAlias = Callable[[Answer | None], None]
"""Called with the answer to a request, or with None if there is none."""


class Link(Protocol):
    """One ZooKeeper session. Thread-safe; `submit` never blocks."""

    @property
    def timeout_ms(self) -> int:
        """The session timeout that the server has granted; known once the link is open."""
        ...

    def open(self) -> Flight:
        """Start to connect; the flight ends, without answers, when the session is established."""
        ...

    def submit(self, requests: Sequence[Request]) -> Flight:
        """Send requests in this order, without waiting."""
        ...

    def watch(self, path: str, on_answer: OnAnswer) -> None:
        """Read a node and watch it, without waiting. `on_answer` is called on any thread and must
        not block."""
        ...

    def is_lost(self) -> bool:
        """Return whether the session is known to have ended."""
        ...

    def close(self) -> None:
        """End the session, without waiting for the server."""
        ...


class Waiting(Protocol):
    """How a caller waits: it suspends under asyncio and blocks otherwise."""

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        """Wait for a flight.

        Raises StoreUnavailableError if nothing of it was sent, OutcomeUnknownError if some of it
        may have been executed, LinkLostError if the session has ended.
        """
        ...

    def signal(self) -> Signal:
        """Return a flag to wait for."""
        ...


class Network(Machine, Protocol):
    """Everything outside one store object: connections, clocks, random numbers."""

    def link(
        self, timeout_ms: int, on_event: OnEvent, on_lost: Callable[[], None], *, pings: bool
    ) -> Link:
        """Return a new session, not open yet. Events arrive on any thread and must not block.

        Without pings, only requests keep it alive.
        """
        ...

    @property
    def caller(self) -> Waiting:
        """How API callers wait."""
        ...

    @property
    def keeper(self) -> Waiting:
        """How keepers wait, each on its thread."""
        ...
