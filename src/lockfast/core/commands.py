"""The commands that a client sends to a store, and the store's replies.

Every store executes each command in one atomic step; there is no other interface between
clients and stores. Commands and replies are plain tuples of plain values, so they can be
sent over a network, recorded, replayed and compared.

Commands contain durations, never times of a client's clock; only the store reads a clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

HOLDING, WAITING, REVOKED = "holding", "waiting", "revoked"
"""The states of a claim in a store."""

# ── nouns ────────────────────────────────────────────────────────────────────────────


class Resource(NamedTuple):
    """What can be locked: a kind and a name."""

    kind: str
    name: str


PLACES_MAX: Final = 128
"""How many places a claim may have: the locks taken at once, and each level of a tree lock."""


class Place(NamedTuple):
    """One resource that a claim requests, and the mode in which it requests it."""

    kind: str
    name: str
    mode: str
    weight: int = 1
    limit: int = 0
    """The semaphore's limit as this client knows it; 0 for everything else."""


class Blocker(NamedTuple):
    """A claim ahead of another one: the waiter watches its process and names it in errors."""

    session: str
    n: int
    owner: str
    process: str
    """The identity of its process on this machine, for the death watch; "" if unknown."""
    renewals: int
    held: bool
    token: int
    for_ms: int


# ── commands ─────────────────────────────────────────────────────────────────────────


class Open(NamedTuple):
    """Create a session. No other command creates one."""

    session: str
    ttl_ms: int
    owner: str
    metadata: str = ""
    inbox: str = ""
    process: str = ""


class Enter(NamedTuple):
    """Enter the queues of all places in one step. The claim is granted all places or none."""

    session: str
    n: int
    places: tuple[Place, ...]
    actor: str = ""
    queue: bool = True
    """False for try_acquire: do not queue if the claim cannot be granted now."""
    priority: int = 0
    head_start_ms: int = 0
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    block: int = 1
    """How many tokens to reserve with the grant. A block of more than one marks a retained
    claim, whose session is woken when others wait for the lock."""
    value: str | None = None
    open: Open | None = None
    """Opens the session together with the first claim, which saves a round trip."""
    window_ms: int = 0
    """The store grants nothing else on the resource for this long after the grant."""


class Contend(NamedTuple):
    """Request a grant now; on failure, the store wakes the session when a retry may succeed.

    Only for stores without a queue, where a waiting claim retries.
    """

    enter: Enter
    waited_ms: int = 0
    """How long this claim has waited, so that nodes can wake the longest waiter first."""


class Leave(NamedTuple):
    """Remove a claim, held or waiting. The store never accepts its number again."""

    session: str
    n: int
    places: tuple[Place, ...] = ()
    """The places of the claim's `Enter`, for stores that must declare their keys."""
    close_ms: int = 0
    """Grant nothing on the resource for this long."""


class Convert(NamedTuple):
    """Change the mode of a held claim. Its current mode cancels a waiting conversion."""

    session: str
    n: int
    step: int
    """Increases with each conversion of a claim, so that a delayed one cannot undo a newer."""
    mode: str
    queue: bool = True


class Proclaim(NamedTuple):
    """Change the value of a held claim."""

    session: str
    n: int
    value: str


class Adopt(NamedTuple):
    """Assign a claim to another actor of the same session."""

    session: str
    n: int
    actor: str


class Renew(NamedTuple):
    """Renew a session, and compare the client's view of its claims with the store's.

    `waiting` names the session's first waiting claim in each queue. The store settles those
    queues, so a lost wake delays a grant by at most one renewal interval.
    """

    session: str
    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    checksum: int = 0
    lowest: int = 0
    """The client will never use a claim number below this one again."""
    waiting: tuple[int, ...] = ()


class Close(NamedTuple):
    """End a session and remove all its claims."""

    session: str


class Expel(NamedTuple):
    """End the session of a client that is presumed dead.

    With `renewals`, end it only if its renewal counter still has this value. Without, end it
    unconditionally, because its process is known to have exited.
    """

    session: str
    reason: str
    renewals: int | None = None


class Revoke(NamedTuple):
    """Take a claim from its holder. The holder's error names `by` and `reason`."""

    session: str
    n: int
    by: str
    reason: str


class RevokeSession(NamedTuple):
    """End the session of another client. Its errors name `by` and `reason`."""

    session: str
    by: str
    reason: str


class Resize(NamedTuple):
    """Change the limit of a semaphore in use. A lower limit affects only later grants."""

    kind: str
    name: str
    limit: int


class Witness(NamedTuple):
    """A claim in a deadlock, as the detector read it; it must still be in this state."""

    session: str
    n: int
    held: bool


class Break(NamedTuple):
    """Break a deadlock, if every claim in it is still in the state in which it was read.

    With `ahead_of`, move the claim ahead of that reservation; without, cancel the claim.
    """

    session: str
    n: int
    witnesses: tuple[Witness, ...]
    ahead_of: tuple[str, int] | None = None
    detail: str = ""


class Watch(NamedTuple):
    """Start or stop waking this session when an event is written to the log."""

    session: str
    on: bool


class Look(NamedTuple):
    """Read the state of one claim."""

    session: str
    n: int


class Claims(NamedTuple):
    """Read all claims of a session."""

    session: str


class Inspect(NamedTuple):
    """Read one resource: its holders and the head of its queue."""

    kind: str
    name: str
    waiting_max: int = 100


class Listing(NamedTuple):
    """Read the resources in use whose names begin with `prefix`, sorted by name."""

    kind: str
    prefix: str = ""
    after: str = ""
    limit: int = 100


class Sessions(NamedTuple):
    """Read the sessions, sorted by id."""

    after: str = ""
    limit: int = 1000


class Events(NamedTuple):
    """Read the log after a position; with None, read only the position of its end."""

    after: int | None
    limit: int = 500


Command: TypeAlias = (
    Open
    | Enter
    | Contend
    | Leave
    | Convert
    | Proclaim
    | Adopt
    | Renew
    | Close
    | Expel
    | Revoke
    | RevokeSession
    | Resize
    | Break
    | Watch
    | Look
    | Claims
    | Inspect
    | Listing
    | Sessions
    | Events
)
READS: Final = frozenset((Look, Claims, Inspect, Listing, Sessions, Events))
"""Commands that change nothing."""


# ── replies ──────────────────────────────────────────────────────────────────────────


class Done(NamedTuple):
    """The command took effect, now or in an earlier attempt."""

    found: bool = True
    more: bool = False
    """After a command that ends a session: the session has ended, but the store has not yet
    removed all its claims. Send the command again until this is False."""


class Granted(NamedTuple):
    """The claim is held."""

    token: int
    for_ms: int = 0
    """How long the claim has been held, by the store's clock."""
    mode: str = ""
    """The mode of a claim with one place; "" for several places."""
    wanted: bool = False
    """Others wait for this retained claim."""


class Queued(NamedTuple):
    """The claim is queued, or its conversion waits while it keeps its granted mode."""

    ahead: tuple[Blocker, ...]
    """The claim directly ahead; for the first in the queue, the holders (at most 16)."""
    look_ms: int
    """When the claims ahead expire at the latest, unless they are renewed."""


class Busy(NamedTuple):
    """The claim cannot be granted now; the store has not recorded it."""

    ahead: tuple[Blocker, ...]
    retry_ms: int = 0
    """For a contending claim: when to retry, unless a wake arrives earlier."""


class Refused(NamedTuple):
    """The request can never succeed as sent. `why` is one of the WHY_ constants."""

    why: str
    detail: str = ""
    value: int = 0
    limit: int = 0


class Gone(NamedTuple):
    """The claim has ended, or the store has never seen it."""

    reason: str
    by: str = ""


class Ended(NamedTuple):
    """The session has ended or was never opened. An ended session cannot be reopened."""

    reason: str
    by: str = ""


class Renewed(NamedTuple):
    """The session is renewed for one TTL, counted from some time before this reply."""

    matches: bool
    """True if `count` and `checksum` agree with the store's claims."""
    looks: tuple[tuple[int, Granted | Queued | Gone], ...] = ()
    """The state of each claim named in `waiting`."""


class ClaimView(NamedTuple):
    """One claim, as other clients can read it."""

    session: str
    n: int
    owner: str
    actor: str
    places: tuple[Place, ...]
    state: str
    token: int
    priority: int
    value: str | None
    for_ms: int
    """How long the claim has been in this state."""
    left_ms: int
    """Time until the claim expires unless its session is renewed."""
    by: str = ""
    reason: str = ""
    block: int = 1
    wants: str = ""
    """The mode that the claim is converting to; "" if none."""


class ResourceView(NamedTuple):
    """One resource, as clients can read it."""

    kind: str
    name: str
    holders: tuple[ClaimView, ...]
    waiting: tuple[ClaimView, ...]
    holder_count: int
    waiting_count: int
    limit: int
    closed_ms: int


class SessionView(NamedTuple):
    """One session, as other clients can read it."""

    session: str
    owner: str
    metadata: str
    process: str
    ttl_ms: int
    left_ms: int
    claims: int
    renewals: int
    ended: str
    by: str


class Event(NamedTuple):
    """One entry of the log."""

    position: int
    wall_ms: int
    what: str
    kind: str
    name: str
    mode: str
    session: str
    n: int
    owner: str
    token: int
    detail: str


class ClaimsReply(NamedTuple):
    claims: tuple[ClaimView, ...]


class ListingReply(NamedTuple):
    resources: tuple[ResourceView, ...]
    more: bool


class SessionsReply(NamedTuple):
    sessions: tuple[SessionView, ...]
    more: bool


class EventsReply(NamedTuple):
    events: tuple[Event, ...]
    end: int
    """The position of the newest entry."""
    oldest: int
    """The position of the oldest entry; end + 1 if the log is empty."""
    more: bool


Reply: TypeAlias = (
    Done
    | Granted
    | Queued
    | Busy
    | Refused
    | Gone
    | Ended
    | Renewed
    | ClaimsReply
    | ResourceView
    | ListingReply
    | SessionsReply
    | EventsReply
)

WHY_FINISHED = "finished"
WHY_DEADLOCK = "deadlock"
WHY_LIMIT_DIFFERS = "limit differs"
WHY_QUEUE_FULL = "queue full"
WHY_CLAIMS_FULL = "claims full"
WHY_TOO_LARGE = "too large"
WHY_INVALID = "invalid"


# ── wakes ────────────────────────────────────────────────────────────────────────────

WAKE_GRANTED = "granted"
WAKE_LOOK = "look"
WAKE_WANTED = "wanted"
WAKE_ENDED = "ended"
WAKE_EVENTS = "events"
WAKE_FREE = "free"
"""To a contending claim: the lock it waits for was released."""


class Wake(NamedTuple):
    """A notification to a session. The store sends it after the step is durable."""

    inbox: str
    session: str
    n: int
    what: str
    token: int = 0
