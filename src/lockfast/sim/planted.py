"""Bugs planted on purpose, as patches at run time: the default search must find each.

A search that finds nothing proves something only if it finds what is there. Each of these is a
mistake that lock managers have really made, or that was once made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

from lockfast.core import commands as c
from lockfast.core import lines, rows, table
from lockfast.core.lines import Lines
from lockfast.core.table import Table
from lockfast.flow import acquire, presence, retained
from lockfast.flow.holding import Holding, LeaseState
from lockfast.flow.keeper import Keeper
from lockfast.flow.session import Session
from lockfast.guards import memory
from lockfast.sim.lockserver import LockServer
from lockfast.sim.runtime import MS, Host

Patch = Callable[[ExitStack], None]


class Planted(NamedTuple):
    name: str
    plant: Patch


_ALL: list[Planted] = []


def _bug(name: str) -> Callable[[Patch], Patch]:
    def enter(plant: Patch) -> Patch:
        _ALL.append(Planted(name, plant))
        return plant

    return enter


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With this bug, until the end of the block."""
    bug = next(bug for bug in _ALL if bug.name == name)
    with ExitStack() as stack:
        bug.plant(stack)
        yield


def _set(stack: ExitStack, owner: Any, name: str, value: object) -> None:
    stack.enter_context(mock.patch.object(owner, name, value))


def _handle(stack: ExitStack, command: type, handler: Callable[[Table, Any], c.Reply]) -> None:
    """Have the table carry out a command in another way."""
    stack.enter_context(mock.patch.dict(table._WRITES, {command: handler}))


# ── tokens ───────────────────────────────────────────────────────────────────────────


@_bug("token from the client's wall clock")
def _(stack: ExitStack) -> None:
    right = Session._hold

    def wrong(self: Session, holding: Holding, reply: c.Granted, sent_ms: int) -> Any:
        effect = right(self, holding, reply, sent_ms)
        assert isinstance(self.runtime, Host)
        holding.token = self.runtime.clock.wall_us()
        return effect

    _set(stack, Session, "_hold", wrong)


@_bug("token from a counter that is lost with the store")
def _(stack: ExitStack) -> None:
    def wrong(self: Lines, block: int = 1) -> int:
        token = self.meta.token + 1
        self.meta.token = token + block - 1
        return token

    _set(stack, Lines, "next_token", wrong)


@_bug("upgrade without a new token")
def _(stack: ExitStack) -> None:
    right = Lines.set_mode

    def wrong(self: Lines, claim: rows.Claim, resource: rows.ResourceRow, mode: str) -> None:
        with mock.patch.object(lines, "EXCLUSIVE", "nothing"):
            right(self, claim, resource, mode)

    _set(stack, Lines, "set_mode", wrong)


# ── sessions and deadlines ───────────────────────────────────────────────────────────


@_bug("deadline from the reply's time")
def _(stack: ExitStack) -> None:
    right = Session.renewed

    def wrong(self: Session, sent_ms: int) -> bool:
        return right(self, self.runtime.now_ms())

    _set(stack, Session, "renewed", wrong)


@_bug("no margin before the deadline")
def _(stack: ExitStack) -> None:
    _set(stack, presence, "margin_ms", lambda ttl_ms: 0)


@_bug("renewal after expiry")
def _(stack: ExitStack) -> None:
    right = Table.renew

    def wrong(self: Table, command: c.Renew) -> c.Reply:
        return right(self, command)

    def lenient(self: Table, session_id: str) -> Any:
        found = self.session(session_id)
        if found is None:
            return c.Ended("the store does not know the session")
        if found.ended:
            return c.Ended(found.ended, found.by)
        return self.session_to_change(session_id)

    apply = Table.apply

    def without_reaping(self: Table, command: c.Command, now_ms: int, wall_us: int) -> Any:
        if not isinstance(command, c.Renew):
            return apply(self, command, now_ms, wall_us)
        with mock.patch.object(Table, "_reap"):
            return apply(self, command, now_ms, wall_us)

    _handle(stack, c.Renew, wrong)
    _set(stack, Table, "_live", lenient)
    _set(stack, Table, "apply", without_reaping)


@_bug("session revived")
def _(stack: ExitStack) -> None:
    right = Table.open

    def wrong(self: Table, command: c.Open) -> c.Reply:
        known = self.session(command.session)
        if known is not None and known.ended:
            known.ended = ""
            known.deadline_ms = self.now_ms + known.ttl_ms
        return right(self, command)

    _set(stack, Table, "open", wrong)
    _handle(stack, c.Open, wrong)


@_bug("expiry on restart")
def _(stack: ExitStack) -> None:
    right = LockServer.start

    def wrong(self: LockServer) -> None:
        if self.down:
            found = self.table.rows.scan(rows.SESSION_PREFIX, "s\x20", 1000)
            right(self)
            for _, row in found:
                self.apply(c.Expel(row.id, "the store was restarted"))

    _set(stack, LockServer, "start", wrong)


@_bug("a keep-alive that says yes though the claim is gone")
def _(stack: ExitStack) -> None:
    right = Table.renew

    def wrong(self: Table, command: c.Renew) -> c.Reply:
        reply = right(self, command)
        return reply._replace(matches=True) if isinstance(reply, c.Renewed) else reply

    _handle(stack, c.Renew, wrong)


@_bug("retained lock kept past its deadline")
def _(stack: ExitStack) -> None:
    # As if the local line looked at what it was told last, and not at the clock.
    right = retained.Keep._admits

    def wrong(self: retained.Keep, arrival: int) -> bool:
        with mock.patch.object(Session, "state_of", return_value=LeaseState.HELD):
            return right(self, arrival)

    _set(stack, retained.Keep, "_admits", wrong)
    _set(stack, retained.Keep, "_note_wanted", lambda self: None)


@_bug("max_hold known to the store only")
def _(stack: ExitStack) -> None:
    right = Session._hold

    def wrong(self: Session, holding: Holding, reply: c.Granted, sent_ms: int) -> Any:
        ask, holding.ask = holding.ask, holding.ask._replace(max_hold_ms=0)
        try:
            return right(self, holding, reply, sent_ms)
        finally:
            holding.ask = ask

    _set(stack, Session, "_hold", wrong)


@_bug("a client that is closed still believes")
def _(stack: ExitStack) -> None:
    async def wrong(self: Keeper) -> None:
        ended = self._session.snapshot
        if ended.ended == "the client was closed":
            self._session.snapshot = ended._replace(ended="")
        await right(self)

    right = Keeper._close
    finish = Session._finish

    def late(self: Session, holding: Holding, reason: str, by: str = "") -> Any:
        return [] if reason == "the client was closed" else finish(self, holding, reason, by)

    _set(stack, Keeper, "_close", wrong)
    _set(stack, Session, "_finish", late)


# ── claims ───────────────────────────────────────────────────────────────────────────


@_bug("release without owner check")
def _(stack: ExitStack) -> None:
    right = Table.leave

    def wrong(self: Table, command: c.Leave) -> c.Reply:
        for place in command.places[:1]:
            for holder in self.holders(self.resource(place.kind, place.name)):
                self._remove(holder, "released")
                self.settle(holder.places)
        return right(self, command)

    _handle(stack, c.Leave, wrong)


@_bug("retry as a second claim")
def _(stack: ExitStack) -> None:
    right = Holding.enter

    def wrong(self: Holding, queue: bool, opening: c.Open | None) -> c.Enter:
        if self.session is not None and self.since_ms == -1:
            self.session._holdings.pop(self.n, None)
            self.n = self.session._next_n
            self.session._next_n += 1
            self.session._holdings[self.n] = self
        self.since_ms = -1
        return right(self, queue, opening)

    _set(stack, Holding, "enter", wrong)
    _set(stack, Session, "_give_back", lambda self, n: None)


@_bug("forgotten waiter")
def _(stack: ExitStack) -> None:
    right = Table.leave

    def wrong(self: Table, command: c.Leave) -> c.Reply:
        with mock.patch.object(Table, "settle"):
            return right(self, command)

    _handle(stack, c.Leave, wrong)


@_bug("lost wake-up")
def _(stack: ExitStack) -> None:
    right = Lines.wake

    def wrong(self: Lines, claim: rows.Claim, what: str, token: int = 0) -> None:
        if what != c.WAKE_GRANTED:
            right(self, claim, what, token)

    _set(stack, Lines, "wake", wrong)


@_bug("a grant heard by the keeper never reaches its waiter")
def _(stack: ExitStack) -> None:
    right = Session.look_over

    def wrong(self: Session, n: int, reply: Any, sent_ms: int) -> None:
        if not isinstance(reply, c.Granted):
            right(self, n, reply, sent_ms)

    _set(stack, Session, "look_over", wrong)
    _set(stack, Session, "reconcile", lambda self, proof, stored, sent_ms: None)


@_bug("a late enter that arrives after its leave")
def _(stack: ExitStack) -> None:
    _set(stack, table, "is_seen", lambda session, n: False)


@_bug("an abandoned claim is not given back")
def _(stack: ExitStack) -> None:
    right = Session.abandon

    def wrong(self: Session, holding: Holding) -> None:
        before = dict(self._outbox)
        right(self, holding)
        self._outbox = before

    _set(stack, Session, "abandon", wrong)
    _set(stack, Session, "_give_back", lambda self, n: None)


@_bug("a grant that was lost on its way is taken for held")
def _(stack: ExitStack) -> None:
    right = Session.state_of

    def wrong(self: Session, holding: Holding) -> Any:
        return LeaseState.HELD if holding.token == 0 else right(self, holding)

    _set(stack, Session, "state_of", wrong)


@_bug("a release that is not heard keeps the lock for long")
def _(stack: ExitStack) -> None:
    _set(stack, acquire, "RENEWALS_PER_TTL", 0.05)


# ── lines ────────────────────────────────────────────────────────────────────────────


@_bug("reader overtaking writer")
def _(stack: ExitStack) -> None:
    right = Lines._could_hold

    def wrong(self: Lines, resource: rows.ResourceRow, place: c.Place, rank: str) -> bool:
        if place.mode != "shared":
            return right(self, resource, place, rank)
        waiting, resource.waiting = resource.waiting, 0
        try:
            return right(self, resource, place, rank)
        finally:
            resource.waiting = waiting

    _set(stack, Lines, "_could_hold", wrong)


@_bug("last come, first served")
def _(stack: ExitStack) -> None:
    right = rows.rank_of
    _set(stack, rows, "rank_of", lambda key_ms, arrival: right(-key_ms, (1 << 60) - arrival))


@_bug("permit leaked")
def _(stack: ExitStack) -> None:
    right = lines.subtract

    def wrong(counts: dict[str, int], place: c.Place) -> None:
        if place.mode == "permit" and place.weight > 1:
            place = place._replace(weight=place.weight - 1)
        right(counts, place)

    _set(stack, lines, "subtract", wrong)


@_bug("more permits than there are")
def _(stack: ExitStack) -> None:
    right = lines.fits

    def wrong(place: c.Place, limit: int, *counts: dict[str, int]) -> bool:
        return right(place._replace(weight=1), limit, *counts)

    _set(stack, lines, "fits", wrong)


@_bug("a priority that overtakes a holder")
def _(stack: ExitStack) -> None:
    right = Table.enter

    def wrong(self: Table, command: c.Enter) -> c.Reply:
        if command.priority <= 0:
            return right(self, command)
        with mock.patch.object(Lines, "_could_hold", return_value=True):
            return right(self, command)

    _handle(stack, c.Enter, wrong)


@_bug("a conversion that drops the granted mode")
def _(stack: ExitStack) -> None:
    right = Lines.await_conversion

    def wrong(self: Lines, claim: rows.Claim, resource: rows.ResourceRow, mode: str) -> None:
        right(self, claim, resource, mode)
        claim.places = (claim.places[0]._replace(mode="shared"),)
        resource.held = {"shared": resource.holders}

    _set(stack, Lines, "await_conversion", wrong)


@_bug("several-at-once that holds a part")
def _(stack: ExitStack) -> None:
    right = Lines.stand

    def wrong(self: Lines, claim: rows.Claim, queue: bool = True) -> bool:
        could = Lines._could_hold
        first = claim.places[0]

        def only_the_first(
            self: Lines, resource: rows.ResourceRow, place: c.Place, rank: str
        ) -> bool:
            return place != first or could(self, resource, place, rank)

        with mock.patch.object(Lines, "_could_hold", only_the_first):
            return right(self, claim, queue)

    _set(stack, Lines, "stand", wrong)


@_bug("two victims for one cycle")
def _(stack: ExitStack) -> None:
    right = Table.break_
    _handle(stack, c.Break, lambda self, command: right(self, command._replace(witnesses=())))


@_bug("a guard that lets a former holder pass")
def _(stack: ExitStack) -> None:
    _set(stack, memory, "judge", lambda admission, floor: None)


@_bug("a guard that forgets who read")
def _(stack: ExitStack) -> None:
    right = memory.MemoryGuard.admit

    def wrong(self: memory.MemoryGuard, resource: str, token: int, **how: bool) -> None:
        floors = dict(self._floors)
        right(self, resource, token, **how)
        self._floors = {mark: min(floor, token - 60 * MS) for mark, floor in floors.items()}

    _set(stack, memory.MemoryGuard, "admit", wrong)


PLANTED: tuple[Planted, ...] = tuple(_ALL)
