"""The requests to one node, and its answers.

They are flat tuples of plain values, which every backend can encode in its own way. Every request
is idempotent, because a network may deliver it twice, or late.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from lockfast.core.commands import Open

OK = "ok"
UNKNOWN = "unknown"
"""The node has no record of the session."""
ENDED = "ended"

HELD, SHUT, SILENT, LOW = "held", "closed", "silent", "low"
AHEAD, BEHIND = "ahead", "behind"
"""Why a node refuses a ballot: another lease is alive (HELD), the lock is closed (SHUT), the
node restarted recently (SILENT), the ballot is not above the last one (LOW), or it is too far
from the node's clock (AHEAD, BEHIND)."""


class Take(NamedTuple):
    """Accept this ballot for a lock, and renew the session."""

    session: str
    n: int
    kind: str
    name: str
    ballot: int
    actor: str = ""
    value: str | None = None
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    window_ms: int = 0
    since_us: int = 0
    """When the client began to wait, to decide which contender to wake; 0 if it does not wait."""
    flight: int = 0
    """The number of the flight within the session; a claim may be proposed again in a later one."""
    open: Open | None = None
    """Creates the session if the node has no record of it."""


class Give(NamedTuple):
    """Release a ballot, and never accept it again."""

    session: str
    n: int
    kind: str
    name: str
    ballot: int
    close_ms: int = 0
    undo: bool = False
    """The ballot did not win a majority: also undo its window, and wake no contender."""


class Keep(NamedTuple):
    """Renew a session."""

    session: str


class Restored(NamedTuple):
    """One claim of a session, as its client has it on record."""

    n: int
    kind: str
    name: str
    ballot: int
    actor: str
    value: str | None
    lock_delay_ms: int
    restore: bool
    """Accept the claim if the node does not have it; otherwise only do not release it."""


class Sync(NamedTuple):
    """Update a node's state of a session to what a majority has confirmed.

    The node releases the ballots of earlier flights that are not listed. Those of later flights
    were proposed after this request was created, even if they arrive before it.
    """

    open: Open
    flight: int
    claims: tuple[Restored, ...]


class End(NamedTuple):
    """End a session; if `renewals` is given, only if the session was not renewed since."""

    session: str
    reason: str
    renewals: int | None = None


class Describe(NamedTuple):
    """Change the actor or the value of a held claim."""

    session: str
    n: int
    kind: str
    name: str
    ballot: int
    what: str
    text: str


class ReadClaims(NamedTuple):
    session: str


class ReadLocks(NamedTuple):
    """Read one lock or, with `limit`, locks by prefix, after a name."""

    kind: str
    name: str
    after: str = ""
    limit: int = 0


class ReadSessions(NamedTuple):
    after: str
    limit: int


Request: TypeAlias = (
    Open | Take | Give | Keep | Sync | End | Describe | ReadClaims | ReadLocks | ReadSessions
)


NAMES: Final[Mapping[type, str]] = {
    Open: "open",
    Take: "take",
    Give: "give",
    Keep: "keep",
    Sync: "sync",
    End: "end",
    Describe: "describe",
    ReadClaims: "claims",
    ReadLocks: "locks",
    ReadSessions: "sessions",
}
"""The name of each request: the function of the script, the path on a server."""


class Holder(NamedTuple):
    """The holder of a lock, as one node knows it."""

    session: str
    n: int
    ballot: int
    owner: str
    process: str
    renewals: int
    actor: str
    value: str | None
    for_ms: int
    left_ms: int


class Taken(NamedTuple):
    """The answer to `Take`."""

    status: str
    """OK, UNKNOWN, ENDED, or why the ballot is refused."""
    reason: str = ""
    """Why the session ended."""
    highest: int = 0
    """The highest ballot that the node may have accepted; the next one must be above it."""
    wall_us: int = 0
    contenders: int = 0
    free_ms: int = 0
    """When the node will accept a ballot at the latest, as far as it knows."""
    holder: Holder | None = None


class Given(NamedTuple):
    """The answer to every request that names a session and returns no data."""

    status: str
    reason: str = ""
    found: bool = False


class Kept(NamedTuple):
    """The answer to `Keep`."""

    status: str
    reason: str = ""
    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    checksum: int = 0


class HeldClaim(NamedTuple):
    """One claim of a session, as one node knows it."""

    n: int
    kind: str
    name: str
    ballot: int
    actor: str
    value: str | None
    for_ms: int


class SessionClaims(NamedTuple):
    """The answer to `Sync` and `ReadClaims`."""

    status: str
    reason: str = ""
    owner: str = ""
    left_ms: int = 0
    claims: tuple[HeldClaim, ...] = ()


class LockView(NamedTuple):
    kind: str
    name: str
    closed_ms: int
    contenders: int
    holder: Holder | None


class Locks(NamedTuple):
    locks: tuple[LockView, ...]
    more: bool


class NodeSession(NamedTuple):
    session: str
    owner: str
    metadata: str
    process: str
    ttl_ms: int
    left_ms: int
    claims: int
    renewals: int
    ended: str


class NodeSessions(NamedTuple):
    sessions: tuple[NodeSession, ...]
    more: bool


Answer: TypeAlias = Taken | Given | Kept | SessionClaims | Locks | NodeSessions


ANSWERS: Final[Mapping[type, type]] = {
    Open: Given,
    Take: Taken,
    Give: Given,
    Keep: Kept,
    Sync: SessionClaims,
    End: Given,
    Describe: Given,
    ReadClaims: SessionClaims,
    ReadLocks: Locks,
    ReadSessions: NodeSessions,
}
"""The kind of answer to each request."""


class About(NamedTuple):
    """What a server says about its node when a client connects."""

    id: str
    """Made with the node's file; two names of one node show the same."""
    skew_us: int
    silence_ms: int
    silent_ms: int
    """For how long it will not grant anything yet."""
    wall_us: int
    version: str


class NoAnswer(NamedTuple):
    """The node did not answer; `error` says why."""

    error: Exception
    maybe: bool = False
    """The node may have executed the request."""


class FreeWake(NamedTuple):
    """A wake for a session: the lock it waits for was released."""

    inbox: str
    session: str
    n: int
