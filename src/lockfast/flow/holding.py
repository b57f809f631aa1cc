"""What a client knows of one of its claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from lockfast.core.commands import Blocker, Enter, Open, Place
from lockfast.core.modes import CONFLICTS, INTENT_EXCLUSIVE, INTENT_SHARED, PERMIT
from lockfast.ports import Signal

if TYPE_CHECKING:
    from lockfast.flow.session import Session

INTENTS: Final = (INTENT_SHARED, INTENT_EXCLUSIVE)


class LeaseState(StrEnum):
    """How a lease stands, by the holder's own clock."""

    HELD = "held"
    UNCERTAIN = "uncertain"
    """The last keep-alive failed; the deadline has not been reached."""
    LOST = "lost"
    RELEASED = "released"


class Phase(StrEnum):
    """Where a claim is on its way; it only ever moves on."""

    ENTERING = "entering"
    WAITING = "waiting"
    HELD = "held"
    OVER = "over"
    """Lost, revoked, or never granted: `reason` says which."""
    RELEASED = "released"


ENTERING, WAITING, HELD = Phase.ENTERING, Phase.WAITING, Phase.HELD
OVER, RELEASED = Phase.OVER, Phase.RELEASED
"""To look them up in their class takes its time, and every use of a lease does."""


class Ask(NamedTuple):
    """What an acquire asks for, apart from how long it waits."""

    places: tuple[Place, ...]
    ttl_ms: int
    priority: int = 0
    head_start_ms: int = 0
    max_hold_ms: int = 0
    lock_delay_ms: int = 0
    block: int = 1
    value: str | None = None
    window_ms: int = 0

    @property
    def name(self) -> str:
        """What was asked for, without the ancestors of a tree's node."""
        return ", ".join(place.name for place in self.places if place.mode not in INTENTS)


class Holding:
    """One claim, from before it is sent until it is over.

    It is made before anything is sent, so whatever interrupts the caller finds it and
    can give it back. Its fields change under its session's mutex only.
    """

    # Most claims never need more than these to say: what is the same for all of them is
    # kept once, here.
    session: Session | None = None
    n = 0
    phase = Phase.ENTERING
    token = 0
    step = 0
    converting = False
    granted_at_ms = 0
    """On our clock, no later than the grant."""
    since_ms = 0
    """When it began to wait."""
    looked_ms = 0
    """When it was last looked at for a deadlock."""
    hold_deadline_ms: int | None = None
    may_be_stored = False
    """An Enter may have reached the store, so the claim has to be given back there."""
    leaving = False
    """Its release is on the way: that the store has no record of it is no loss."""
    look_when_queued = False
    """A wake for it may have been missed while its enter was under way."""
    ahead: tuple[Blocker, ...] = ()
    """Whom the claim waits for directly, as the store said last."""
    reason = ""
    by = ""
    ended_ms: int | None = None
    changed: Signal | None = None
    """Set when the phase moves on; there while somebody waits for that."""
    on_over: tuple[Callable[[], None], ...] = ()
    """Called when a held claim is lost or released, on whichever thread notices."""
    on_wanted: Callable[[], None] | None = None
    """Called when others wait for a claim that is kept for later use."""
    wanted = False
    owner: Callable[[], object | None] | None = None
    """A weak reference to the lease: when that is gone, nobody can give this back."""

    def __init__(self, ask: Ask, actor: str) -> None:
        self.ask = ask
        self.actor = actor
        self.mode = ask.places[0].mode

    def enter(self, queue: bool, opening: Open | None) -> Enter:
        """The command that puts this claim in line."""
        assert self.session is not None
        (
            places, _, priority, head_start_ms, max_hold_ms, lock_delay_ms, block, value,
            window_ms,
        ) = self.ask  # fmt: skip
        return Enter(
            self.session.id, self.n, places, self.actor, queue, priority, head_start_ms,
            max_hold_ms, lock_delay_ms, block, value, opening, window_ms,
        )  # fmt: skip


def is_orphan(holding: Holding) -> bool:
    """Whether the lease that would give it back is gone."""
    return holding.owner is not None and holding.owner() is None


def suspects(holdings: Iterable[Holding]) -> list[Holding]:
    """Claims that wait for an actor who holds something: without both there is no deadlock."""
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
    """The one of what an actor holds that its next claim would wait for, for ever."""
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
