"""The client's view of one of its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockfast.core.commands import Blocker, Enter, Open, Place
from lockfast.core.modes import CONFLICTS, INTENT_EXCLUSIVE, INTENT_SHARED, PERMIT
from lockfast.ports import Signal

if TYPE_CHECKING:
    from lockfast.events import Subject
    from lockfast.flow.session import Session

INTENTS: Final = (INTENT_SHARED, INTENT_EXCLUSIVE)


class LeaseState(StrEnum):
    """The state of a lease, by the holder's local clock."""

    HELD = "held"
    UNCERTAIN = "uncertain"
    """The last keep-alive failed; the deadline has not been reached."""
    LOST = "lost"
    RELEASED = "released"


class Phase(StrEnum):
    """The phase of a claim; within a session it never moves backwards."""

    ENTERING = "entering"
    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    """Held or waiting until the claim or its session ended; `reason` says why."""
    RELEASED = "released"


ENTERING, WAITING, HELD = Phase.ENTERING, Phase.WAITING, Phase.HELD
LOST, RELEASED = Phase.LOST, Phase.RELEASED
"""Module-level names, because attribute lookup on an enum is slow in the acquire path."""


def full_span_ms(span_ms: int) -> int:
    """Return what to request from a store for a span that must not be cut short; 0 means none.

    Stores read their clocks in whole milliseconds, so a span begins up to one millisecond
    before the command that starts it.
    """
    return span_ms + 1 if span_ms else 0


class Ask(NamedTuple):
    """The parameters of an acquire, except its timeout."""

    places: tuple[Place, ...]
    ttl_ms: int
    priority: int = 0
    head_start_ms: int = 0
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    block: int = 1
    value: str | None = None
    window_ms: int = 0
    fixed_ms: int = 0
    """How long a lease lasts that is not renewed; 0 if it is renewed."""

    @property
    def name(self) -> str:
        """The requested names, without the ancestors of a tree node."""
        return ", ".join(place.name for place in self.places if place.mode not in INTENTS)


class Holding:
    """One claim, from before it is sent until it has ended.

    It is created before the first request, so that an interrupted acquire can always be
    undone. Its fields change only under the session's mutex.
    """

    # Class attributes are the defaults; most claims never change most of them.
    session: Session | None = None
    n = 0
    phase = Phase.ENTERING
    token = 0
    step = 0
    converting = False
    granted_at_ms = 0
    """A local time no later than the grant."""
    since_ms = 0
    """When the claim began to wait."""
    looked_ms = 0
    """When the claim was last checked for a deadlock."""
    hold_deadline_ms: int | None = None
    may_be_stored = False
    """An `Enter` may have reached the store, so the claim must be removed there."""
    leaving = False
    """Its release is in flight, so a missing record in the store is not a loss."""
    look_when_queued = False
    """A wake may have been missed while `Enter` was in flight: check the claim once queued."""
    ahead: tuple[Blocker, ...] = ()
    """The claims directly ahead of this one, as the store last reported them."""
    reason = ""
    by = ""
    why = ""
    """Why it was lost, in one word: one of the LOST_ constants."""
    held_us: int | None = None
    """When its grant was reported to an observer; None if it was not, or its end was too."""
    being_granted = False
    """Its acquire is observed and has not returned: an end is reported after the grant."""
    contended = False
    """It had to wait, or would have had to; known only if somebody observes."""
    queue_length = 0
    """The length of the queue when it entered, including itself; as above."""
    subject: Subject | None = None
    """What it asks for, as observers see it."""
    trace: Any = None
    """What the tracer attached to it."""
    lost_ms: int | None = None
    changed: Signal | None = None
    """Set when the phase changes; None unless a caller waits for that."""
    on_end: tuple[Callable[[], None], ...] = ()
    """Called when a held claim ends (lost or released), on the thread that detects it."""
    on_wanted: Callable[[], None] | None = None
    """Called when others wait for a retained claim."""
    wanted = False
    owner: Callable[[], object | None] | None = None
    """A weak reference to the lease. Once it is dead, the keeper must release the claim."""

    def __init__(self, ask: Ask, actor: str) -> None:
        self.ask = ask
        self.actor = actor
        self.mode = ask.places[0].mode

    @property
    def bound_ms(self) -> int:
        """How long the claim may be held at most; 0 if there is no bound."""
        bounds = (self.ask.max_hold_ms, self.ask.fixed_ms)
        return min((bound for bound in bounds if bound), default=0)

    def enter(self, queue: bool, opening: Open | None) -> Enter:
        """Return the command that enters this claim into the queue."""
        assert self.session is not None
        (
            places, _, priority, head_start_ms, max_hold_ms, lock_delay_ms, block, value,
            window_ms, _,
        ) = self.ask  # fmt: skip
        return Enter(
            self.session.id, self.n, places, self.actor, queue, priority, head_start_ms,
            max_hold_ms, full_span_ms(lock_delay_ms), block, value, opening,
            full_span_ms(window_ms),
        )  # fmt: skip


def is_orphan(holding: Holding) -> bool:
    """Return True if the claim's lease object was collected without a release."""
    return holding.owner is not None and holding.owner() is None


def suspects(holdings: Iterable[Holding]) -> list[Holding]:
    """Return waiting claims whose actor also holds a claim; only these can be in a deadlock."""
    known = list(holdings)
    holding_actors = {
        holding.actor for holding in known if holding.phase is Phase.HELD and holding.actor
    }
    return [
        holding
        for holding in known
        if holding.actor in holding_actors
        and (holding.phase is Phase.WAITING or holding.converting)
    ]


def own_conflict(held: Iterable[Holding], wanted: Holding) -> Holding | None:
    """Return the claim in `held`, all of one actor, that blocks `wanted`; else None."""
    for place in wanted.ask.places:
        there = [
            (holding, other)
            for holding in held
            for other in holding.ask.places
            if other[:2] == place[:2] and holding is not wanted
        ]
        if place.mode == PERMIT:
            if place.weight + sum(other.weight for _, other in there) > place.limit:
                return there[0][0]
            continue
        for holding, other in there:
            mode = holding.mode if len(holding.ask.places) == 1 else other.mode
            if mode in CONFLICTS[place.mode]:
                return holding
    return None
