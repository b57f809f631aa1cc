"""Bugs planted in the client's flow code."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest import mock

from lockfast.core import commands as c
from lockfast.flow import acquire, deadlock, retained, session_claims, session_life
from lockfast.flow.holding import Holding, LeaseState
from lockfast.flow.keeper import Keeper
from lockfast.flow.retry import Backoff
from lockfast.flow.session import Session
from lockfast.sim.runtime import Host
from tests.sim.planted.bugs import bug, replace


@bug("token from the client's wall clock", promise="order")
def _(stack: ExitStack) -> None:
    right = Session._hold

    def wrong(self: Session, holding: Holding, reply: c.Granted, sent_ms: int) -> Any:
        effect = right(self, holding, reply, sent_ms)
        assert isinstance(self.runtime, Host)
        holding.token = self.runtime.clock.wall_us()
        return effect

    replace(stack, Session, "_hold", wrong)


@bug("deadline from the reply's time", promise="told")
def _(stack: ExitStack) -> None:
    right = Session.renewed

    def wrong(self: Session, sent_ms: int) -> bool:
        return right(self, self.runtime.now_ms())

    replace(stack, Session, "renewed", wrong)


@bug("no margin before the deadline", promise="told")
def _(stack: ExitStack) -> None:
    for module in (session_life, session_claims):
        replace(stack, module, "margin_ms", lambda ttl_ms: 0)


@bug("retained lock kept past its deadline", promise="liveness")
def _(stack: ExitStack) -> None:
    # As if the local queue used the last notification and not the clock.
    right = retained.RetainedLock._admits

    def wrong(self: retained.RetainedLock, arrival: int) -> bool:
        with mock.patch.object(Session, "state_of", return_value=LeaseState.HELD):
            return right(self, arrival)

    replace(stack, retained.RetainedLock, "_admits", wrong)
    replace(stack, retained.RetainedLock, "_note_wanted", lambda self: None)


@bug("max_hold known to the store only", promise="exclusion")
def _(stack: ExitStack) -> None:
    right = Session._hold

    def wrong(self: Session, holding: Holding, reply: c.Granted, sent_ms: int) -> Any:
        ask, holding.ask = holding.ask, holding.ask._replace(max_hold_ms=0)
        try:
            return right(self, holding, reply, sent_ms)
        finally:
            holding.ask = ask

    replace(stack, Session, "_hold", wrong)


@bug("a client that is closed still believes", promise="exclusion")
def _(stack: ExitStack) -> None:
    async def wrong(self: Keeper, command: c.Command) -> None:
        ended = self._session.snapshot
        if ended.ended == "the client was closed":
            self._session.snapshot = ended._replace(ended="")
        await right(self, command)

    right = Keeper._close
    lose = Session._lose

    def late(self: Session, holding: Holding, reason: str, by: str, why: str) -> Any:
        return [] if reason == "the client was closed" else lose(self, holding, reason, by, why)

    replace(stack, Keeper, "_close", wrong)
    replace(stack, Session, "_lose", late)


@bug("retry as a second claim", promise="liveness")
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

    replace(stack, Holding, "enter", wrong)
    replace(stack, Session, "_leave_later", lambda self, n: None)


@bug("a grant heard by the keeper never reaches its waiter", promise="liveness")
def _(stack: ExitStack) -> None:
    right = Session.apply_view

    def wrong(self: Session, n: int, reply: Any, sent_ms: int) -> None:
        if not isinstance(reply, c.Granted):
            right(self, n, reply, sent_ms)

    replace(stack, Session, "apply_view", wrong)
    replace(stack, Session, "reconcile", lambda self, proof, stored, sent_ms: None)


@bug("a claim to be released later is not released", promise="liveness")
def _(stack: ExitStack) -> None:
    right = Session.release_later

    def wrong(self: Session, holding: Holding, close_ms: int = 0) -> None:
        before = self._outbox.commands.copy()
        right(self, holding, close_ms)
        self._outbox.commands = before

    replace(stack, Session, "release_later", wrong)
    replace(stack, Session, "_leave_later", lambda self, n: None)


@bug("a grant that was lost on its way is taken for held", promise="tokens")
def _(stack: ExitStack) -> None:
    right = Session.state_of

    def wrong(self: Session, holding: Holding) -> Any:
        return LeaseState.HELD if holding.token == 0 else right(self, holding)

    replace(stack, Session, "state_of", wrong)


@bug("a release that is not heard keeps the lock for long", promise="liveness")
def _(stack: ExitStack) -> None:
    replace(stack, acquire, "RENEWALS_PER_TTL", 0.05)


@bug("the search for deadlocks sees one session of a client", promise="liveness")
def _(stack: ExitStack) -> None:
    async def wrong(send: deadlock.Send, session: str) -> tuple[c.ClaimView, ...]:
        reply = await send(c.Claims(session))
        return reply.claims if isinstance(reply, c.ClaimsReply) else ()

    replace(stack, deadlock, "_claims_around", wrong)


@bug("the keeper does not pause after a failure", promise="busy", store="etcd")
def _(stack: ExitStack) -> None:
    replace(stack, Backoff, "failed", lambda self, now_ms: None)


@bug("a session that fell silent is not expelled", promise="liveness", store="redis")
def _(stack: ExitStack) -> None:
    async def wrong(self: Keeper, reply: c.Renewed) -> None:
        """Nothing, so a dead holder stays until a clock that was set back has caught up."""

    replace(stack, Keeper, "_expel_the_silent", wrong)
