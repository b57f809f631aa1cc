"""What a client asks of one node, and what the node answers.

Requests and answers are flat tuples of plain values, so that each backend can carry them its
own way. Every request is idempotent: a network may deliver it twice, or late.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from lockfast.core.commands import Open

OK = "ok"
UNKNOWN = "unknown"
"""The node has no record of the session."""
ENDED = "ended"

HELD, SHUT, SILENT, LOW = "held", "closed", "silent", "low"
AHEAD, BEHIND = "ahead", "behind"
"""Why a node refuses a ballot: another's lease is alive, the lock is closed for a while, the
node restarted a moment ago, the ballot is not above the last, or it is too far from the node's
own clock."""


class Take(NamedTuple):
    """Accept this ballot for a lock, and with it renew the session."""

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
    """When its client began to wait, to order those to be woken; 0: it does not wait."""
    open: Open | None = None
    """Creates the session if the node does not know it."""


class Give(NamedTuple):
    """Give a ballot back, and never accept it again."""

    session: str
    n: int
    kind: str
    name: str
    ballot: int
    close_ms: int = 0
    undo: bool = False
    """It did not win a majority: undo its window too, and wake nobody."""


class Keep(NamedTuple):
    """Renew a session."""

    session: str


class Restored(NamedTuple):
    """One claim of a session that its client believes in."""

    n: int
    kind: str
    name: str
    ballot: int
    actor: str
    value: str | None
    lock_delay_ms: int
    restore: bool
    """Take it over if the node does not have it; else only leave it alone."""


class Sync(NamedTuple):
    """Bring a node's record of a session in line with what a majority has confirmed.

    Claims below `up_to` that are not named are given back; those at or above it were
    proposed after this request was written.
    """

    open: Open
    up_to: int
    claims: tuple[Restored, ...]


class End(NamedTuple):
    """End a session; with `renewals`, only if its counter still shows that number."""

    session: str
    reason: str
    renewals: int | None = None


class Describe(NamedTuple):
    """Change what is said about a held claim: its actor or its value."""

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
    """Read one lock, or with `limit` those after a name that begin with a prefix."""

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


class Holder(NamedTuple):
    """Who holds a lock, as far as one node is concerned."""

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
    """Of an ended session."""
    highest: int = 0
    """The highest ballot the node may have accepted; the next must be above."""
    wall_us: int = 0
    contenders: int = 0
    free_ms: int = 0
    """When the node might accept, at the latest, as far as it knows."""
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
    """One claim of a session, as a node has it."""

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


class NoAnswer(NamedTuple):
    """A node that will not answer, and why."""

    error: Exception
    maybe: bool = False
    """It may have carried out the request."""


class FreeWake(NamedTuple):
    """To be told to a session: a ballot it waits for was given back."""

    inbox: str
    session: str
    n: int
