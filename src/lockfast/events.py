"""The events that clients and guards emit.

An event is an immutable tuple of plain values. `at_us` is the local clock that also governs
leases (`CLOCK_BOOTTIME`; virtual time in the simulator), in microseconds; durations are in
microseconds too. Events carry names, owners and tokens, but never a password: `Source.store`
is the store's URL without it.

An `Observer` of this port must not raise and must not block, because events are emitted on
the threads that renew leases. `lockfast.observe` and `connect(observers=…)` accept any
callable and put a bounded queue and a thread in front of it.

Loading this module takes milliseconds, so `import lockfast` does not: emitters import it when
there is something to emit. That is also why it does without `from __future__ import
annotations`, which makes a NamedTuple compile each annotation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from lockfast.core.reasons import (
    LOST_ENDED,
    LOST_EXPIRED,
    LOST_KEEPER,
    LOST_MAX_HOLD,
    LOST_MISSING,
    LOST_REVOKED,
)

# ── who and what ─────────────────────────────────────────────────────────────────────


class Source(NamedTuple):
    """The client that emits an event."""

    store: str
    """The store's URL, without its password."""
    scheme: str
    """The kind of store: `redis` (also for `unix://` and `rediss://`), `sqlite`, …"""
    owner: str


class Subject(NamedTuple):
    """What a claim asks for."""

    kind: str
    name: str
    mode: str
    actor: str
    """The task or thread that acquires; "" for the claim behind a retained lock."""


# ── acquire and release ──────────────────────────────────────────────────────────────


class AcquireBegun(NamedTuple):
    """A caller asks for a lock."""

    at_us: int
    source: Source
    subject: Subject
    timeout_ms: int | None
    trace: Any = None
    """What the tracer attached to this acquire, if traces are enabled."""


class AcquireQueued(NamedTuple):
    """The lock is taken, so the claim waits."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    position: int | None
    """The claim's place in the queue, 1 for the first; None if the store has no queue or did
    not reply in time."""
    holders: tuple[str, ...]
    """The owners that hold the lock."""
    traces: tuple[str, ...]
    """The trace contexts of these holders, where they have one."""
    trace: Any = None


class AcquireGranted(NamedTuple):
    """The caller holds the lock."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    wait_us: int
    contended: bool
    """The claim had to wait."""
    queue_length: int
    """How many claims were waiting when it entered; 0 if it was granted at once."""
    trace: Any = None


class AcquireGaveUp(NamedTuple):
    """The caller did not get the lock."""

    at_us: int
    source: Source
    subject: Subject
    why: str
    """One of the GAVE_UP_ constants."""
    wait_us: int
    contended: bool
    error: str
    trace: Any = None


GAVE_UP_TIMEOUT = "timeout"
GAVE_UP_BUSY = "busy"
"""`try_acquire` or `timeout=0` found the lock taken."""
GAVE_UP_DEADLOCK = "deadlock"
GAVE_UP_REVOKED = "revoked"
GAVE_UP_UNAVAILABLE = "unavailable"
GAVE_UP_REFUSED = "refused"
"""A limit was reached, or the store does not support the request."""
GAVE_UP_CANCELLED = "cancelled"
"""The caller was interrupted: a cancelled task, Ctrl-C, or an exception elsewhere."""


class LeaseReleased(NamedTuple):
    """The caller gave the lock back, or dropped its lease."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    hold_us: int
    trace: Any = None


class LeaseConverted(NamedTuple):
    """A held lease changed its mode."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    former_mode: str
    former_token: int
    """An upgrade gets a new token; a downgrade keeps it."""
    wait_us: int
    trace: Any = None


class LeaseUncertain(NamedTuple):
    """A keep-alive failed, so the lease ends at its deadline unless a later one succeeds."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    left_us: int
    """Time until the deadline."""
    trace: Any = None


class LeaseLost(NamedTuple):
    """The lease ended before its release."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    why: str
    """One of LOST_EXPIRED, LOST_ENDED, LOST_REVOKED, LOST_MAX_HOLD, LOST_MISSING and
    LOST_KEEPER."""
    reason: str
    hold_us: int
    trace: Any = None


class LeaseRevoked(NamedTuple):
    """An operator took the lock away. A LeaseLost with `why="revoked"` follows."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int
    by: str
    reason: str
    trace: Any = None


class LockRetained(NamedTuple):
    """The client took a lock to keep it between local users."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    token: int


class RetainedReturned(NamedTuple):
    """The client gave a retained lock back to the store, or lost it."""

    at_us: int
    source: Source
    subject: Subject
    session: str
    n: int
    hold_us: int


# ── sessions and stores ──────────────────────────────────────────────────────────────


class SessionOpened(NamedTuple):
    """The store has opened a session."""

    at_us: int
    source: Source
    session: str
    ttl_ms: int


class SessionRenewed(NamedTuple):
    """A keep-alive succeeded: every lease of the session is confirmed."""

    at_us: int
    source: Source
    session: str
    took_us: int
    held: int
    """How many leases it confirmed."""
    waiting: int


class KeepAliveFailed(NamedTuple):
    """A keep-alive failed; it is retried until the deadline."""

    at_us: int
    source: Source
    session: str
    took_us: int
    left_us: int
    """Time until the deadline."""
    error: str


class SessionEnded(NamedTuple):
    """A session has ended."""

    at_us: int
    source: Source
    session: str
    reason: str
    by: str


class StoreUnreachable(NamedTuple):
    """Requests fail. Emitted at the first failure, and then once a minute."""

    at_us: int
    source: Source
    failures: int
    """Failed requests since the outage began."""
    for_us: int
    error: str


class StoreBack(NamedTuple):
    """A request succeeded again."""

    at_us: int
    source: Source
    failures: int
    for_us: int


class DeadlockFound(NamedTuple):
    """Our keeper found a deadlock and asked the store to break it."""

    at_us: int
    source: Source
    session: str
    lines: tuple[str, ...]
    victim: str
    """The owner whose acquire fails; "" if a claim moved ahead of a reservation instead."""


# ── guards ───────────────────────────────────────────────────────────────────────────


class GuardAdmitted(NamedTuple):
    """A guard let a token through. Inside a transaction that only counts once it commits."""

    at_us: int
    guard: str
    resource: str
    token: int


class GuardRefused(NamedTuple):
    """A guard refused a token that a newer one has succeeded."""

    at_us: int
    guard: str
    resource: str
    token: int
    floor: int


Event: TypeAlias = (
    AcquireBegun
    | AcquireQueued
    | AcquireGranted
    | AcquireGaveUp
    | LeaseReleased
    | LeaseConverted
    | LeaseUncertain
    | LeaseLost
    | LeaseRevoked
    | LockRetained
    | RetainedReturned
    | SessionOpened
    | SessionRenewed
    | KeepAliveFailed
    | SessionEnded
    | StoreUnreachable
    | StoreBack
    | DeadlockFound
    | GuardAdmitted
    | GuardRefused
)

Observer: TypeAlias = Callable[[Event], None]

LOSSES = (
    LOST_EXPIRED, LOST_ENDED, LOST_REVOKED, LOST_MAX_HOLD, LOST_MISSING, LOST_KEEPER,
)  # fmt: skip
"""Every reason why a lease may be lost."""
