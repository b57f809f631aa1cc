"""The general path of a command: read, let the lock table decide, commit; on conflict, retry.

A step may start from the ranges that a shortcut has read. Its transaction compares everything the
decision rests on; on a conflict, the same request reads again what the step needs, and the table
decides again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, Reply, Wake
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim
from lockfast.core.table import Table
from lockfast.errors import StoreError
from lockfast.stores.derived import steps
from lockfast.stores.derived.steps import (
    LIMITS,
    SEVERAL_MAX,
    Conflicts,
    Outcome,
    Settle,
    lag_ms,
)
from lockfast.stores.derived.stored import resolved
from lockfast.stores.derived.view import ClaimId, Name
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.batches import Committed
from lockfast.stores.etcd.errors import LeaseGoneError, SessionMovedError
from lockfast.stores.etcd.execution import READS_MAX, Execution
from lockfast.stores.etcd.layout import Base, KnownBase
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.plan import Plan, TooLargeError
from lockfast.stores.etcd.requests import REVOKE, Known, Kv, Range
from lockfast.stores.etcd.view import WINDOW, Missing, View, others_of, queue_of

MOVES: Final = 20
"""The most claims that one transaction grants; the next transaction continues."""
LEFT_MS: Final = 60_000
"""Leases that are not longer than this are left to expire when they are not needed any more."""
TAIL_READ: Final = 16
"""Claims of lower priority may be last, so reading one key of the tail is not enough."""


class Joined(NamedTuple):
    """Grant what can be granted after a claim has joined the queue, and look at the claim."""

    session: str
    n: int
    places: tuple[c.Place, ...]


Steppable: TypeAlias = c.Command | Settle | Joined
TAKES_TURN: Final = (c.Enter, c.Leave, c.Convert)
"""Commands that take their turn before the first attempt: `Batches` sends transactions about the
same resource one after the other, so attempts of several callers would fail one by one."""
_INEXACT: Final = (c.Leave, Settle, Joined)


class Step:
    """The execution of one command."""

    def __init__(
        self, execution: Execution, command: Steppable, known: Known | None = None
    ) -> None:
        """`known` holds ranges that were already read."""
        self._execution = execution
        self._known = known
        self._keys = execution.keys
        self._own = execution.own
        self._command = command
        self._session: OwnSession | None = self._own.get(getattr(command, "session", ""))
        # All attempts use the same rank, so that they read the same ranges.
        self._arrival = self._own.next_arrival(execution.context.revision)
        self._located: dict[ClaimId, k.PlaceKey | None] = {}
        self._windows: dict[str, int] = {}
        self._places: dict[Name, None] = {}
        """Resources that the command certainly concerns."""
        self._wants: dict[Range, None] = dict.fromkeys(self._expected())
        """Ranges to read, in the order in which they were found to be needed."""
        self._moves = MOVES
        self._conflicts = Conflicts(
            self._keys.label, execution.network, execution.gateway.transport.pause,
            execution.until_ms,
            execution.turn(self._places, goes_first=isinstance(command, c.Leave)),
        )  # fmt: skip
        self._lag_ms: int | None = None
        """Set once the tail of the queue has been read, and then fixed, so that ranges do not
        change."""
        self._seen: View | None = None
        """The rows of the last attempt."""
        self._unused: list[tuple[int, int]] = []
        """Leases that bound nothing any more, and their lengths in milliseconds."""
        self.unsettled: list[c.Place] = []
        """Resources where more can be granted than fits into one transaction."""

    async def run(self) -> Outcome:
        """Execute the command in one transaction.

        Raises StoreUnavailableError only if the command was certainly not executed.
        """
        try:
            outcome = await self._run()
        finally:
            try:
                self._conflicts.over()
            except BaseException:
                self._conflicts.over()  # it was interrupted
                raise
        await self._revoke_unused()
        return outcome._replace(reply=await self._dated(outcome.reply))

    async def _run(self) -> Outcome:
        known = self._known
        if isinstance(self._command, TAKES_TURN) and await self._conflicts.take_turn():
            known = None
        while True:
            if known is None:
                known = await self._execution.read(self._wants)
            view = self._view(known)
            try:
                reply, wakes = self._decide(view)
                is_whole = not (view.wants or view.unlocated)
            except Missing:
                is_whole = False
            if self._session is not None and not self._session.was_opened:
                raise SessionMovedError
            if not is_whole:
                self._wants.update(dict.fromkeys(sorted(view.wants)))
                for of in view.unlocated:
                    self._located[of] = await self._execution.locate(*of)
                known = None
                continue
            self._seen = view
            plan = Plan(view, wakes, self._execution.context, self._command)
            if plan.is_empty:
                self._note(plan, reply)
                return Outcome(reply, wakes)
            try:
                sent = await self._commit(plan)
            except TooLargeError:
                if self._moves == 1:
                    raise StoreError(
                        self._keys.label, "the step does not fit into one transaction"
                    ) from None
                self._moves //= 2
                continue
            if isinstance(sent, Committed):
                if isinstance(self._command, c.Leave):
                    self._unused += self._bounds(self._command.n)
                return self._committed(plan, reply, sent)
            known = None if await self._conflicts.another() else sent

    async def _revoke_unused(self) -> None:
        """End leases that would otherwise last for a long max_hold after the claim has left."""
        for lease, span_ms in self._unused:
            if span_ms > LEFT_MS:
                with suppress(StoreError, LeaseGoneError):
                    await self._execution.call(REVOKE, ID=str(lease))

    def _bounds(self, n: int) -> Iterator[tuple[int, int]]:
        """Yield the lease that bounds a claim which had been granted, and the max_hold."""
        view, of = self._seen, (getattr(self._command, "session", ""), n)
        before = view.before.get(of) if view is not None and view.instant.by_server else None
        lasting = view.known.get(k.bound_key(*of)) if view is not None else None
        if before is not None and before.until_ms and lasting is not None:
            yield lasting.lease, before.max_hold_ms

    async def _dated(self, reply: Reply) -> Reply:
        """Return a reply that says since when the holder of a claim may count its max_hold.

        Clocks of clients differ, so none can tell how long ago another one granted the claim. The
        holder counts from this reply instead, and so does etcd: the lease that bounds the claim
        begins anew.
        """
        if isinstance(reply, c.Granted):
            return await self._begin_hold(getattr(self._command, "n", 0), reply)
        if isinstance(reply, c.Renewed):
            looks = [
                (n, await self._begin_hold(n, one) if isinstance(one, c.Granted) else one)
                for n, one in reply.looks
            ]
            return reply._replace(looks=tuple(looks))
        return reply

    async def _begin_hold(self, n: int, granted: c.Granted) -> c.Granted:
        for lease, max_hold_ms in self._bounds(n):
            is_in_time = await self._execution.keep_alive(lease)
            return granted._replace(for_ms=0 if is_in_time else max_hold_ms)
        return granted

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
        for claim in (own.claims[n] for n in numbers if own and n in own.claims):
            places += claim.claim.places
            if not isinstance(command, c.Enter):
                yield Range(claim.keys()[0])
        if isinstance(command, c.Inspect | c.Resize):
            places.append(command)
        for place in places:
            if place.kind in MODES_OF_KIND:
                self._places[place.kind, place.name] = None
        for place in self._places:
            prefix = k.resource_prefix(*place)
            if isinstance(command, c.Inspect):
                self._windows[prefix] = command.waiting_max + 32
            start = self._execution.start_of(prefix)
            yield others_of(prefix, start)
            yield queue_of(prefix, start, self._windows.get(prefix, WINDOW))

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
        if base is not None and kv is not None:
            context.base = KnownBase(base, kv)
        else:
            base = Base(max(0, instant.wall_us - k.STRIDE * known.revision))
        view = View(
            known, self._own, base, instant, exact=self._is_exact(), arrival=self._arrival,
            n=getattr(self._command, "n", 0),
        )  # fmt: skip
        view.windows, view.located = self._windows, self._located
        view.starts = self._execution.starts
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
            look = c.Look(command.session, command.n)
            reply, wakes = table.settle_apart(
                command.places, now_ms, wall_us, look, has_joined=True
            )
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
                tail = Range(*k.queue_from(lines.prefix, lines.start), TAIL_READ, True)
                if tail in view.known.found:
                    kvs += view.known.found[tail].kvs
                elif lines.is_whole or not command.queue:
                    kvs += lines.queue.kvs
                else:
                    view.wants.add(tail)
                    raise Missing
            claims = [k.claim_from(k.parse_place(kv.key), kv)[0] for kv in kvs]
            entries = [(claim.entered_ms, claim.rank) for claim in claims]
            self._lag_ms = lag_ms(entries, view.instant.now_ms, self._arrival)
        # Reservations are read whole, and may have been added since the last attempt.
        reserved = [
            (claim.entered_ms, claim.rank)
            for claim in view.before.values()
            if claim is not None and claim.passed and claim.state != HOLDING
        ]
        return max(self._lag_ms, lag_ms(reserved, view.instant.now_ms, self._arrival))

    def _entered(self, view: View) -> Claim | None:
        """Return the claim that the command newly stores, if any."""
        command = self._command
        if not isinstance(command, c.Enter) or view.before.get((command.session, command.n)):
            return None
        return view.stored(command.session, command.n)

    # ── committing ───────────────────────────────────────────────────────────────────

    async def _commit(self, plan: Plan) -> Committed | Known | None:
        """Commit a plan; on conflict, return the ranges read again, if any."""
        execution, own = self._execution, self._session
        lease_s = execution.context.lease_s
        leases = [await execution.grant_lease(lease_s(span_ms)) for span_ms in plan.spans]
        wanted = list(self._wants) if len(self._wants) <= READS_MAX else []
        proposal, entered = plan.proposal(leases, wanted), self._entered(plan.view)
        if own is not None and entered is not None:
            sent = await execution.propose_enter(own, entered, proposal, wanted)
        else:
            sent = await execution.propose(proposal, wanted)
        if not isinstance(sent, Committed):
            self._unused += zip(leases, plan.spans, strict=True)
        return sent

    def _committed(self, plan: Plan, reply: Reply, committed: Committed) -> Outcome:
        view, revision, context = plan.view, committed.answer.revision, self._execution.context

        def token_at(position: int) -> int:
            return committed.token(view.base.epoch, position)

        for (session, n), before, claim in view.changes():
            own = self._own.get(session)
            if own is None or claim == before:
                continue
            if claim is None:
                own.left(n)
            else:
                claim.token = resolved(claim.token, token_at)
                slot = view.slot_of((session, n))
                own.note(claim, slot, revision, plan.heirs.get((session, n)))
        for lines in view.lines.values():
            waiting = view.row(lines).waiting
            starts = [*lines.stored_starts, plan.starts.get(lines.prefix, "")]
            context.started(lines.prefix, max(starts))
            if waiting or lines.before.waiting:
                context.met(lines.prefix, waiting)
            elif not view.row(lines).holders:
                context.busy.pop(lines.prefix, None)
        self._note(plan, reply)
        wakes = [resolved(wake, token_at) for wake in plan.wakes]
        self._own.deliver(wakes)
        return Outcome(resolved(reply, token_at), wakes)

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
        for (session, n), before, after in view.changes():
            known, at = own.claims.get(n), view.kv_of.get((session, n))
            if session != own.id or known is None or n in own.doubted or at is None:
                continue
            if after is not None and after == before and known.mod < at.mod:
                own.note(after, view.slot_of((session, n)), at.mod)
        if isinstance(command, c.Leave):
            own.saw(command.n)
            if not isinstance(reply, c.Ended):
                own.left(command.n)
        elif isinstance(command, c.Enter) and isinstance(reply, c.Granted | c.Queued | c.Busy):
            own.saw(command.n)
        elif isinstance(command, c.Renew) and isinstance(reply, c.Renewed):
            own.forget_below(command.lowest)


async def run(execution: Execution, command: c.Command, known: Known | None = None) -> Outcome:
    """Execute a command on the general path, where the lock table decides."""
    step = Step(execution, command, known)
    return await steps.run_and_settle(step, lambda settle: Step(execution, settle))


async def settle(execution: Execution, places: Iterable[c.Place]) -> Outcome:
    """Grant whatever can be granted at these resources."""
    return await steps.settle(places, lambda command: Step(execution, command))
