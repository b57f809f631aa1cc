"""Bugs planted in the lock table and in the simulator's lock server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from lockfast.core import commands as c
from lockfast.core import lines, rows, table
from lockfast.core.lines import Lines
from lockfast.core.reasons import UNKNOWN_SESSION
from lockfast.core.table import Table
from lockfast.sim.lockserver import LockServer
from tests.sim.planted.bugs import bug, replace


def _carry_out(stack: ExitStack, command: type, handler: Callable[[Table, Any], c.Reply]) -> None:
    """Make the table execute a command differently."""
    assert command in table._WRITES, f"the table carries out no {command.__name__}"
    stack.enter_context(mock.patch.dict(table._WRITES, {command: handler}))


@bug("token from a counter that is lost with the store", promise="tokens")
def _(stack: ExitStack) -> None:
    def wrong(self: Lines, block: int = 1) -> int:
        token = self.meta.token + 1
        self.meta.token = token + block - 1
        return token

    replace(stack, Lines, "next_token", wrong)


@bug("upgrade without a new token", promise="tokens")
def _(stack: ExitStack) -> None:
    right = Lines.set_mode

    def wrong(self: Lines, claim: rows.Claim, resource: rows.ResourceRow, mode: str) -> None:
        with mock.patch.object(lines, "EXCLUSIVE", "nothing"):
            right(self, claim, resource, mode)

    replace(stack, Lines, "set_mode", wrong)


@bug("renewal after expiry", promise="left behind")
def _(stack: ExitStack) -> None:
    right = Table.renew

    def wrong(self: Table, command: c.Renew) -> c.Reply:
        return right(self, command)

    def lenient(self: Table, session_id: str) -> Any:
        found = self.session(session_id)
        if found is None:
            return c.Ended(UNKNOWN_SESSION)
        if found.ended:
            return c.Ended(found.ended, found.by)
        return self.session_to_change(session_id)

    apply = Table.apply

    def without_reaping(self: Table, command: c.Command, now_ms: int, wall_us: int) -> Any:
        if not isinstance(command, c.Renew):
            return apply(self, command, now_ms, wall_us)
        with mock.patch.object(Table, "_reap"):
            return apply(self, command, now_ms, wall_us)

    _carry_out(stack, c.Renew, wrong)
    replace(stack, Table, "_live", lenient)
    replace(stack, Table, "apply", without_reaping)


@bug("session revived", promise="what is over stays over")
def _(stack: ExitStack) -> None:
    right = Table.open

    def wrong(self: Table, command: c.Open) -> c.Reply:
        known = self.session(command.session)
        if known is not None and known.ended:
            known.ended = ""
            known.deadline_ms = self.now_ms + known.ttl_ms
        return right(self, command)

    replace(stack, Table, "open", wrong)
    _carry_out(stack, c.Open, wrong)


@bug("expiry on restart", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = LockServer.start

    def wrong(self: LockServer) -> None:
        if self.down:
            found = self.table.rows.scan(rows.SESSION_PREFIX, "s\x20", 1000)
            right(self)
            for _, row in found:
                self.apply(c.Expel(row.id, "the store was restarted"))

    replace(stack, LockServer, "start", wrong)


@bug("a keep-alive that says yes though the claim is gone", promise="accounts agree")
def _(stack: ExitStack) -> None:
    right = Table.renew

    def wrong(self: Table, command: c.Renew) -> c.Reply:
        reply = right(self, command)
        return reply._replace(matches=True) if isinstance(reply, c.Renewed) else reply

    _carry_out(stack, c.Renew, wrong)


@bug("release without owner check", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = Table.leave

    def wrong(self: Table, command: c.Leave) -> c.Reply:
        for place in command.places[:1]:
            for holder in self.holders(self.resource(place.kind, place.name)):
                self._remove(holder, "released")
                self.settle(holder.places)
        return right(self, command)

    _carry_out(stack, c.Leave, wrong)


@bug("forgotten waiter", promise="nobody is forgotten")
def _(stack: ExitStack) -> None:
    right = Table.leave

    def wrong(self: Table, command: c.Leave) -> c.Reply:
        with mock.patch.object(Table, "settle"):
            return right(self, command)

    _carry_out(stack, c.Leave, wrong)


@bug("lost wake-up", promise="wakes are true")
def _(stack: ExitStack) -> None:
    right = Lines.wake

    def wrong(self: Lines, claim: rows.Claim, what: str, token: int = 0) -> None:
        if what != c.WAKE_GRANTED:
            right(self, claim, what, token)

    replace(stack, Lines, "wake", wrong)


@bug("a late enter that arrives after its leave", promise="what is over stays over")
def _(stack: ExitStack) -> None:
    replace(stack, table, "is_seen", lambda session, n: False)


@bug("reader overtaking writer", promise="order")
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

    replace(stack, Lines, "_could_hold", wrong)


@bug("last come, first served", promise="order")
def _(stack: ExitStack) -> None:
    right = rows.rank_of
    replace(stack, rows, "rank_of", lambda key_ms, arrival: right(-key_ms, (1 << 60) - arrival))


@bug("permit leaked", promise="liveness")
def _(stack: ExitStack) -> None:
    right = lines.subtract

    def wrong(counts: dict[str, int], place: c.Place) -> None:
        if place.mode == "permit" and place.weight > 1:
            place = place._replace(weight=place.weight - 1)
        right(counts, place)

    replace(stack, lines, "subtract", wrong)


@bug("more permits than there are", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = lines.fits

    def wrong(place: c.Place, limit: int, *counts: dict[str, int]) -> bool:
        return right(place._replace(weight=1), limit, *counts)

    replace(stack, lines, "fits", wrong)


@bug("a priority that overtakes a holder", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = Table.enter

    def wrong(self: Table, command: c.Enter) -> c.Reply:
        if command.priority <= 0:
            return right(self, command)
        with mock.patch.object(Lines, "_could_hold", return_value=True):
            return right(self, command)

    _carry_out(stack, c.Enter, wrong)


@bug("a conversion that drops the granted mode", promise="model")
def _(stack: ExitStack) -> None:
    right = Lines.await_conversion

    def wrong(self: Lines, claim: rows.Claim, resource: rows.ResourceRow, mode: str) -> None:
        right(self, claim, resource, mode)
        claim.places = (claim.places[0]._replace(mode="shared"),)
        resource.held = {"shared": resource.holders}

    replace(stack, Lines, "await_conversion", wrong)


@bug("several-at-once that holds a part", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = Lines.stand

    def wrong(self: Lines, claim: rows.Claim, queue: bool = True, *, is_new: bool = False) -> bool:
        could = Lines._could_hold
        first = claim.places[0]

        def only_the_first(
            self: Lines, resource: rows.ResourceRow, place: c.Place, rank: str
        ) -> bool:
            return place != first or could(self, resource, place, rank)

        with mock.patch.object(Lines, "_could_hold", only_the_first):
            return right(self, claim, queue, is_new=is_new)

    replace(stack, Lines, "stand", wrong)


@bug("two victims for one cycle", promise="model")
def _(stack: ExitStack) -> None:
    right = Table.break_
    _carry_out(stack, c.Break, lambda self, command: right(self, command._replace(witnesses=())))
