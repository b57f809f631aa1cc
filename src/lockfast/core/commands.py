"""What a client asks of a store, and what a store answers.

Every store takes these commands, each in one atomic step, and gives these answers;
nothing else crosses the border. They are plain tuples of plain values, so they can be
sent over a wire, recorded, replayed and compared.

Instants are left to the store: a command carries spans, never a client's clock.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

HOLDING, WAITING, REVOKED = "holding", "waiting", "revoked"
"""The states of a claim that a store knows of."""

# ── nouns ────────────────────────────────────────────────────────────────────────────


class Resource(NamedTuple):
    """What can be locked: a kind and a name."""

    kind: str
    name: str


class Place(NamedTuple):
    """One resource a claim stands in line for, and how it wants to hold it."""

    kind: str
    name: str
    mode: str
    weight: int = 1
    limit: int = 0
    """The semaphore's size as this client knows it; 0 for everything else."""


class Blocker(NamedTuple):
    """A claim ahead of ours: whom to wait for, watch, and name in an error."""

    session: str
    n: int
    owner: str
    process: str
    """Identity of the process on this machine, for the death watch; "" if unknown."""
    renewals: int
    held: bool
    token: int
    for_ms: int


# ── commands ─────────────────────────────────────────────────────────────────────────


class Open(NamedTuple):
    """Create a session. The only command that does."""

    session: str
    ttl_ms: int
    owner: str
    metadata: str = ""
    inbox: str = ""
    process: str = ""


class Enter(NamedTuple):
    """Stand in line at every place at once; hold nothing until all can be held."""

    session: str
    n: int
    places: tuple[Place, ...]
    actor: str = ""
    queue: bool = True
    """False: hold now or not at all."""
    priority: int = 0
    head_start_ms: int = 0
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    block: int = 1
    """How many tokens to reserve with the grant. With more than one the claim is meant to
    be kept, and is told when others want what it holds."""
    value: str | None = None
    open: Open | None = None
    """Rides along with the first claim, so that it costs no round trip of its own."""
    window_ms: int = 0
    """From the grant on, the resource grants nothing else for this long."""


class Contend(NamedTuple):
    """Hold now; if that is not possible, wake the session when it is worth another attempt.

    Only for stores without a queue: a claim that waits there proposes again and again.
    """

    enter: Enter
    waited_ms: int = 0
    """How long this claim has been waiting, so that nodes wake those who waited longest."""


class Leave(NamedTuple):
    """Give up a claim, held or waiting, and never accept its number again."""

    session: str
    n: int
    places: tuple[Place, ...] = ()
    """As given to enter, for stores that must name their keys."""
    close_ms: int = 0
    """Keep the resource closed for this long."""


class Convert(NamedTuple):
    """Change the mode of a held claim; to the mode it has: give up converting."""

    session: str
    n: int
    step: int
    """Rises with each conversion of a claim, so a late one cannot undo a newer one."""
    mode: str
    queue: bool = True


class Proclaim(NamedTuple):
    """Change the value of a held claim."""

    session: str
    n: int
    value: str


class Adopt(NamedTuple):
    """Have another actor of the same session answer for a claim."""

    session: str
    n: int
    actor: str


class Renew(NamedTuple):
    """Keep a session alive and prove what it has.

    `waiting` names the foremost waiting claim of each line: the store settles those
    lines, so a lost wake-up costs at most one interval.
    """

    session: str
    count: int = 0  # type: ignore[assignment]  # hides tuple.count
    checksum: int = 0
    lowest: int = 0
    """Every claim number below this one is finished for good."""
    waiting: tuple[int, ...] = ()


class Close(NamedTuple):
    """End a session and give up all its claims."""

    session: str


class Expel(NamedTuple):
    """End a session that is seen to be dead.

    With `renewals`, only if it has not been renewed since: the proof is that its
    counter stood still. Without, because its process is known to have died.
    """

    session: str
    reason: str
    renewals: int | None = None


class Revoke(NamedTuple):
    """Take a claim away from its holder, who is told by whom and why."""

    session: str
    n: int
    by: str
    reason: str


class RevokeSession(NamedTuple):
    """End another's session, who is told by whom and why."""

    session: str
    by: str
    reason: str


class Resize(NamedTuple):
    """Give a semaphore in use another limit; a lowered one affects later grants only."""

    kind: str
    name: str
    limit: int


class Witness(NamedTuple):
    """A claim of a deadlock as it was seen: still there and still so, or no deadlock."""

    session: str
    n: int
    held: bool


class Break(NamedTuple):
    """End a deadlock, if every claim of it is as it was seen.

    With `ahead_of`, the claim passes that reservation; without, it gives up.
    """

    session: str
    n: int
    witnesses: tuple[Witness, ...]
    ahead_of: tuple[str, int] | None = None
    detail: str = ""


class Watch(NamedTuple):
    """Wake this session when something is written to the log, or no longer."""

    session: str
    on: bool


class Look(NamedTuple):
    """Read how one claim stands."""

    session: str
    n: int


class Claims(NamedTuple):
    """Read all claims of a session."""

    session: str


class Inspect(NamedTuple):
    """Read one resource: its holders and the head of its line."""

    kind: str
    name: str
    waiting_max: int = 100


class Listing(NamedTuple):
    """Read the resources in use whose names begin with `prefix`, in order of name."""

    kind: str
    prefix: str = ""
    after: str = ""
    limit: int = 100


class Sessions(NamedTuple):
    """Read the sessions, in order of id."""

    after: str = ""
    limit: int = 1000


class Events(NamedTuple):
    """Read the log after a position; `None`: only where it ends."""

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


# ── replies ──────────────────────────────────────────────────────────────────────────


class Done(NamedTuple):
    """It is so now, whether it was before or not."""

    found: bool = True
    more: bool = False
    """Of a command that ends a session: the session has ended, but some of its claims still
    stand. Send the command again until this is False."""


class Granted(NamedTuple):
    """The claim holds."""

    token: int
    for_ms: int = 0
    """How long it has held by the store's clock."""
    mode: str = ""
    """Of a single claim; "" for several at once."""
    wanted: bool = False
    """Of a claim meant to be kept: others wait for what it holds."""


class Queued(NamedTuple):
    """The claim stands in line (or, of a conversion, waits in its granted mode)."""

    ahead: tuple[Blocker, ...]
    """The one before it; of the first in line, the holders (at most 16)."""
    look_ms: int
    """When those ahead are over by themselves, at the latest, as far as known now."""


class Busy(NamedTuple):
    """Not to be had now, and nothing was left behind."""

    ahead: tuple[Blocker, ...]
    retry_ms: int = 0
    """Of a claim that contends: when to try again, unless woken before."""


class Refused(NamedTuple):
    """Never to be had like this. `why` is one of the WHY_ constants."""

    why: str
    detail: str = ""
    value: int = 0
    limit: int = 0


class Gone(NamedTuple):
    """The claim is over (or was never heard of)."""

    reason: str
    by: str = ""


class Ended(NamedTuple):
    """The session is over, or was never opened; it does not come back."""

    reason: str
    by: str = ""


class Renewed(NamedTuple):
    """The session lives for another TTL, counted from before this answer."""

    matches: bool
    """Whether count and checksum agree with the store's."""
    looks: tuple[tuple[int, Granted | Queued | Gone], ...] = ()
    """How each claim named in `waiting` stands now."""


class ClaimView(NamedTuple):
    """One claim as seen from outside."""

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
    """Since it is in this state."""
    left_ms: int
    """Until it ends by itself if nothing is renewed."""
    by: str = ""
    reason: str = ""
    block: int = 1
    wants: str = ""
    """The mode it is converting to; "" if it is not."""


class ResourceView(NamedTuple):
    """One resource as seen from outside."""

    kind: str
    name: str
    holders: tuple[ClaimView, ...]
    waiting: tuple[ClaimView, ...]
    holder_count: int
    waiting_count: int
    limit: int
    closed_ms: int


class SessionView(NamedTuple):
    """One session as seen from outside."""

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
    """The position of the oldest entry kept; end + 1 when there is none."""
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
"""To a claim that contends: what it waits for was given back."""


class Wake(NamedTuple):
    """To be told to a session after the step is durable."""

    inbox: str
    session: str
    n: int
    what: str
    token: int = 0
