"""The general path of a command: read, let the lock table decide, commit; on conflict, retry.

A step may start from the ranges that a shortcut has read. Its transaction compares everything the
decision rests on; on a conflict, the same request reads again what the step needs, and the table
decides again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import Reply, Wake
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim, arrival_of
from lockfast.core.table import Limits, Table
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.batches import Committed
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.execution import READS_MAX, Execution, Outcome
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.owned import Location, OwnSession
from lockfast.stores.etcd.plan import Plan, TooLargeError, make_plan
from lockfast.stores.etcd.requests import Known, Kv, Range
from lockfast.stores.etcd.view import WINDOW, ClaimId, Missing, View

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
MOVES: Final = 20
"""The most claims that one transaction grants; the next transaction continues."""
TAIL_READ: Final = 16
"""Claims of lower priority may be last, so reading one key of the tail is not enough."""
CONFLICTS_MAX: Final = 200
PAUSE_MS_MAX: Final = 16


class Settle(NamedTuple):
    """Grant whatever can be granted at these resources."""

    places: tuple[c.Place, ...]


class Joined(NamedTuple):
    """Grant what can be granted after a claim has joined the queue, and look at the claim."""

    session: str
    n: int
    places: tuple[c.Place, ...]


Steppable: TypeAlias = c.Command | Settle | Joined
_INEXACT: Final = (c.Leave, Settle, Joined)


class Step:
    """The execution of one command."""

    def __init__(self, execution: Execution, command: Steppable) -> None:
        self._execution = execution
        self._keys = execution.keys
        self._own = execution.own
        self._command = command
        self._session: OwnSession | None = self._own.get(getattr(command, "session", ""))
        # All attempts use the same rank, so that they read the same ranges.
        self._arrival = self._own.next_arrival(execution.gateway.cluster.revision)
        self._located: dict[ClaimId, Location | None] = {}
        self._windows: dict[str, int] = {}
        self._places: dict[tuple[str, str], None] = {}
        """Resources that the command certainly concerns."""
        self._wants: dict[Range, None] = dict.fromkeys(self._expected())
        """Ranges to read, in the order in which they were found to be needed."""
        self._moves = MOVES
        self._conflicts = 0
        self._lag_ms: int | None = None
        """Set once the tail of the queue has been read, and then fixed, so that ranges do not
        change."""
        self.unsettled: list[c.Place] = []
        """Resources where more can be granted than fits into one transaction."""

    async def run(self, known: Known | None = None) -> Outcome:
        """Execute the command in one transaction; `known` holds ranges that were already read.

        Raises StoreUnavailableError only if the command was certainly not executed.
        """
        while True:
            if known is None:
                known = await self._execution.read(self._wants)
            view = self._view(known)
            try:
                reply, wakes = self._decide(view)
                is_whole = not (view.wants or view.unlocated)
            except Missing:
                is_whole = False
            if not is_whole:
                self._wants.update(dict.fromkeys(sorted(view.wants)))
                for of in view.unlocated:
                    self._located[of] = await self._execution.locate(*of)
                known = None
                continue
            plan = make_plan(view, wakes, self._own, self._keys, self._command)
            if plan.is_empty:
                self._note(plan, reply)
                return Outcome(reply, wakes, known.revision)
            try:
                committed, known = await self._commit(plan)
            except TooLargeError:
                if self._moves == 1:
                    raise StoreError(
                        self._keys.label, "the step does not fit into one transaction"
                    ) from None
                self._moves //= 2
                continue
            if committed is not None:
                return self._committed(plan, reply, committed)
            await self._conflict()

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _expected(self) -> Iterator[Range]:
        """Yield the ranges that the command certainly needs."""
        command, own = self._command, self._session
        session = getattr(command, "session", "")
        yield Range(k.EPOCH_KEY)
        if session:
            yield Range(k.session_key(session))
            if self._is_exact():
                yield Range(k.alive_key(session))
        numbers = command.waiting if isinstance(command, c.Renew) else [getattr(command, "n", 0)]
        places: list[Any] = list(getattr(command, "places", ()))[:SEVERAL_MAX]
        for claim in (own.claims[n].claim for n in numbers if own and n in own.claims):
            places += claim.places
            if not isinstance(command, c.Enter):
                yield Range(next(key for _, key in k.keys_of(claim)))
        if isinstance(command, c.Inspect | c.Resize):
            places.append(command)
        for place in places:
            if place.kind in MODES_OF_KIND:
                self._places[place.kind, place.name] = None
        for place in self._places:
            prefix = k.resource_prefix(*place)
            if isinstance(command, c.Inspect):
                self._windows[prefix] = command.waiting_max + 32
            yield Range(prefix, k.end_of(prefix), self._windows.get(prefix, WINDOW))

    def _is_exact(self) -> bool:
        """Return whether the reply includes the renewal counts of the claims ahead."""
        command = self._command
        return not (
            command.queue if isinstance(command, c.Enter) else isinstance(command, _INEXACT)
        )

    def _view(self, known: Known) -> View:
        instant, context = self._execution.instant, self._execution.context
        kv = known.get(k.EPOCH_KEY)
        base = k.base_from(self._keys.label, kv)
        if base is not None:
            context.base, context.base_kv = base, kv
        else:
            base = Base(max(0, instant.wall_us - k.STRIDE * known.revision))
        view = View(
            known, self._own, base, instant, exact=self._is_exact(), arrival=self._arrival,
            n=getattr(self._command, "n", 0),
        )  # fmt: skip
        view.windows, view.located = self._windows, self._located
        return view

    # ── deciding ─────────────────────────────────────────────────────────────────────

    def _decide(self, view: View) -> tuple[Reply, list[Wake]]:
        now_ms, wall_us, _ = view.instant
        table, command = Table(view, LIMITS), self._command
        table.moves_left = self._moves
        for place in self._places:
            view.resource(*place)
        if isinstance(command, Settle):
            reply, wakes = table.settle_apart(command.places, now_ms, wall_us)
        elif isinstance(command, Joined):
            joined = c.Look(command.session, command.n)
            reply, wakes = table.settle_apart(command.places, now_ms, wall_us, joined)
        elif isinstance(command, c.Look) and view.has_due:
            _, wakes = table.settle_apart((), now_ms, wall_us)
            reply = table.look(command)
        elif isinstance(command, c.Enter):
            lag_ms = self._lag(view, command)
            late = command._replace(head_start_ms=command.head_start_ms - lag_ms)
            reply, wakes = table.apply(late, now_ms, wall_us)
            entered = self._entered(view)
            if entered is not None:
                entered.entered_ms += lag_ms
        else:
            reply, wakes = table.apply(command, now_ms, wall_us)
        self.unsettled = [c.Place(row.kind, row.name, "") for row in table.unsettled]
        return reply, wakes

    def _lag(self, view: View, command: c.Enter) -> int:
        """Return how far our clock lags behind the claims in the queues to join.

        For a claim that does not wait, those at the head suffice: nobody passes a claim that cannot
        be granted.
        """
        if self._lag_ms is None:
            kvs: list[Kv] = []
            for place in self._places:
                lines = view.resource(*place)
                tail = tail_of(lines.prefix)
                if tail in view.known.found:
                    kvs += view.known.found[tail].kvs
                elif lines.is_whole or not command.queue:
                    kvs += lines.waiting_kvs
                else:
                    view.wants.add(tail)
                    raise Missing
            self._lag_ms = lag_ms(kvs, view.instant.now_ms, self._arrival)
        return self._lag_ms

    def _entered(self, view: View) -> Claim | None:
        """Return the claim that the command newly stores, if any."""
        command = self._command
        if not isinstance(command, c.Enter) or view.before.get((command.session, command.n)):
            return None
        found: Claim | None = view.stored(command.session, command.n)
        return found

    # ── committing ───────────────────────────────────────────────────────────────────

    async def _commit(self, plan: Plan) -> tuple[Committed | None, Known | None]:
        """Commit a plan; on conflict, return no commit and the ranges read again, if any."""
        execution, own = self._execution, self._session
        lease_s = execution.context.lease_s
        leases = [await execution.grant_lease(lease_s(span_ms)) for span_ms in plan.spans]
        wanted = list(self._wants) if len(self._wants) <= READS_MAX else []
        proposal = plan.proposal(self._keys, leases, wanted)
        # A new claim is in doubt until the reply arrives.
        entered = self._entered(plan.view)
        if own is not None and entered is not None:
            own.doubt(entered)
        try:
            committed = await execution.gateway.txn(proposal, execution.until_ms)
        except (LeaseGoneError, StoreUnavailableError) as error:
            if own is not None and entered is not None:
                own.undoubt(entered.n)
            if isinstance(error, LeaseGoneError):
                return None, None
            raise
        if own is not None and entered is not None:
            if committed.answer.succeeded:
                own.doubted.discard(entered.n)
            else:
                own.undoubt(entered.n)
        if committed.answer.succeeded:
            return committed, None
        if not wanted:
            return None, None
        known = Known()
        known.learn(wanted, committed.answer)
        return None, known

    def _committed(self, plan: Plan, reply: Reply, committed: Committed) -> Outcome:
        view, revision, context = plan.view, committed.answer.revision, self._execution.context
        for (session, n), before, claim in view.claims():
            own = self._own.get(session)
            if own is None or claim == before:
                continue
            if claim is None:
                own.left(n)
            else:
                claim.token = plan.resolved(claim.token, committed)
                own.note(claim, revision, plan.heirs.get((session, n)))
        for lines in view.lines.values():
            waiting = view.row(lines).waiting
            if waiting or lines.before.waiting:
                context.met(lines.prefix, waiting)
            elif not view.row(lines).holders:
                context.busy.pop(lines.prefix, None)
        self._note(plan, reply)
        wakes = [plan.resolved(wake, committed) for wake in plan.wakes]
        context.deliver(wakes)
        return Outcome(plan.resolved(reply, committed), wakes, revision)

    def _note(self, plan: Plan, reply: Reply) -> None:
        """Record what the reply says about our own session."""
        command, own, view = self._command, self._session, plan.view
        if own is None:
            return
        if isinstance(reply, c.Ended):
            own.ended = True
        kv = view.known.get(k.session_key(own.id))
        if kv is not None and own.mod < kv.mod:
            own.mod = kv.mod
        for (session, n), before, after in view.claims():
            known, at = own.claims.get(n), view.kv_of.get((session, n))
            if session != own.id or known is None or n in own.doubted or at is None:
                continue
            if after is not None and after == before and known.mod < at.mod:
                own.note(after, at.mod)
        if isinstance(command, c.Leave):
            own.saw(command.n)
            if not isinstance(reply, c.Ended):
                own.left(command.n)
        elif isinstance(command, c.Enter) and isinstance(reply, c.Granted | c.Queued | c.Busy):
            own.saw(command.n)
        elif isinstance(command, c.Renew) and isinstance(reply, c.Renewed):
            own.forget_below(command.lowest)

    async def _conflict(self) -> None:
        execution = self._execution
        self._conflicts += 1
        if self._conflicts > CONFLICTS_MAX or execution.is_over():
            raise StoreUnavailableError(
                self._keys.label,
                f"gave up after {self._conflicts} conflicting updates of this queue",
                "retry",
            )
        if self._conflicts > 2:
            bound = min(PAUSE_MS_MAX, 2 * self._conflicts)
            pause_ms = 1 + execution.network.random_bits(8) % bound
            await execution.gateway.transport.pause(pause_ms)


async def settle(execution: Execution, places: Iterable[c.Place]) -> list[Wake]:
    """Grant whatever can be granted, one resource at a time, in as many steps as necessary."""
    wakes: list[Wake] = []
    left = list(dict.fromkeys(c.Place(place.kind, place.name, "") for place in places))
    while left:
        step = Step(execution, Settle((left.pop(0),)))
        wakes += (await step.run()).wakes
        left += step.unsettled
    return wakes


# ── the order of arrival ─────────────────────────────────────────────────────────────
#
# A waiting key contains the claim's rank: the instant at which it entered, by the wall clock of its
# client, less the head start of its priority. A client whose clock lags would overtake claims that
# are already in the queue. A joining claim therefore reads the tail of the queue first, or compares
# that no claim is behind it, and enters no earlier than the claims it finds. So does a claim that
# does not wait: it must not be granted ahead of those that do.


def tail_of(prefix: str) -> Range:
    return Range(f"{prefix}w\x1f", f"{prefix}w ", TAIL_READ, True)


def lag_ms(tail: Iterable[Kv], now_ms: int, arrival: int) -> int:
    """Return how far our clock lags behind the entries of the waiting claims."""
    lag = 0
    for kv in tail:
        claim, _ = k.claim_from(k.parse_place(kv.key), kv)
        lag = max(lag, claim.entered_ms - now_ms + (arrival_of(claim.rank) >= arrival))
    return lag
