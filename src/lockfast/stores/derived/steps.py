"""What all steps have in common: their instant, their conflicts, their outcome, and settling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from lockfast.core.commands import Done, Event, Place, Reply, Wake
from lockfast.core.rows import arrival_of
from lockfast.core.table import Limits
from lockfast.errors import OutcomeUnknownError, StoreBusyError, StoreUnavailableError
from lockfast.stores.derived.machine import Machine
from lockfast.stores.derived.turns import Turn

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
CONFLICTS_MAX: Final = 200
PAUSE_MS_MAX: Final = 16
QUEUED_TOO_LONG: Final = "the requests of this client before this one took too long"


class Instant(NamedTuple):
    """A reading of the clocks: the store's in milliseconds, a wall clock in microseconds."""

    now_ms: int
    wall_us: int
    by_server: bool = True
    """Whether sessions live as long as the server says, regardless of clocks. Tests that compare
    a store with the lock table set this to False and end sessions by their own clock."""

    def deadline_ms(self, at_ms: int) -> int:
        """Return when something ends that exists now."""
        return max(at_ms, self.now_ms + 1) if self.by_server else at_ms


class Settle(NamedTuple):
    """Grant whatever can be granted at these resources."""

    places: tuple[Place, ...]


class Outcome(NamedTuple):
    """The result of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()
    events: Sequence[Event] = ()

    def followed_by(self, later: Outcome) -> Outcome:
        """Return this reply with the wakes and events of both."""
        return Outcome(self.reply, [*self.wakes, *later.wakes], [*self.events, *later.events])


class Step(Protocol):
    """The execution of one command."""

    @property
    def unsettled(self) -> Sequence[Place]:
        """Resources where more can be granted than fits into one write."""
        ...

    async def run(self) -> Outcome: ...


MakeStep: TypeAlias = Callable[[Settle], Step]


async def settle(places: Iterable[Place], make_step: MakeStep) -> Outcome:
    """Grant whatever can be granted, one resource at a time, in as many steps as necessary."""
    outcome = Outcome(Done())
    left = list(dict.fromkeys(Place(place.kind, place.name, "") for place in places))
    while left:
        step = make_step(Settle((left.pop(0),)))
        outcome = outcome.followed_by(await step.run())
        left += step.unsettled
    return outcome


async def run_and_settle(step: Step, make_step: MakeStep) -> Outcome:
    """Execute a step, and then grant what did not fit into it."""
    outcome = await step.run()
    if not step.unsettled:
        return outcome
    try:
        return outcome.followed_by(await settle(step.unsettled, make_step))
    except (StoreUnavailableError, OutcomeUnknownError):
        return outcome  # the command was executed; waiting claims settle the rest


@dataclass(eq=False)
class Conflicts:
    """The conflicts of one step: how many there were, and how long to pause after each."""

    label: str
    machine: Machine
    pause: Callable[[int], Awaitable[None]]
    until_ms: int
    turn: Turn | None
    count: int = 0

    async def take_turn(self) -> bool:
        """Wait for the turn of this step; return whether other steps had theirs before.

        Raises StoreBusyError if the turn does not come in half of the time.
        """
        if self.turn is None:
            return False
        try:
            return await self.turn.take()
        except TimeoutError:
            raise StoreBusyError(self.label, QUEUED_TOO_LONG, "retry") from None

    async def another(self) -> bool:
        """Count a conflict, wait for the turn of this step, and pause.

        Return whether other steps of this client had their turn, so that what was read before is
        out of date. Raises StoreBusyError if there were too many conflicts.
        """
        self.count += 1
        has_waited = await self.take_turn()
        if self.count > CONFLICTS_MAX or self.machine.now_ms() >= self.until_ms:
            raise StoreBusyError(
                self.label,
                f"gave up after {self.count} conflicting updates of this queue",
                "retry",
            )
        if self.count > 2:
            bound_ms = min(PAUSE_MS_MAX, 2 * self.count)
            await self.pause(1 + self.machine.random_bits(8) % bound_ms)
        return has_waited

    def over(self) -> None:
        """End the turn of this step."""
        if self.turn is not None:
            self.turn.end()


def lag_ms(others: Iterable[tuple[int, str]], now_ms: int, arrival: int) -> int:
    """Return how far our clock lags behind claims in a queue, given by entry and rank.

    A rank is the instant at which a claim entered, by the clock of its client, less the head start
    of its priority. A client whose clock lags would overtake claims that are already in the queue,
    so it enters no earlier than those it finds.
    """
    lags = (entered_ms - now_ms + (arrival_of(rank) >= arrival) for entered_ms, rank in others)
    return max(0, max(lags, default=0))
