"""The store behaves like the lock table, step by step, on thousands of random commands.

The test controls the clock: it ends sessions when its clock says so, as ZooKeeper would. Everything
else is the shipped code: the same documents, multis and checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.commands import READS
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.reasons import EXPIRED
from lockfast.core.table import ENDED_KEPT_MS, Limits, Table
from lockfast.runtimes.threads import run
from lockfast.stores.derived.endings import Ending, ending_of
from lockfast.stores.derived.steps import LIMITS, SEVERAL_MAX, Instant, Outcome
from lockfast.stores.zookeeper import ZooKeeperStore, sessions
from lockfast.stores.zookeeper.context import Requests, raise_base
from lockfast.stores.zookeeper.layout import Sizes
from lockfast.stores.zookeeper.loading import load_all
from lockfast.stores.zookeeper.steps import settle
from lockfast.stores.zookeeper.transport import Network
from lockfast.stores.zookeeper.wire import ZooKeeperWire
from tests.zookeeper.model import ModelNetwork

STEPS = 100
SEEDS_OF_MODEL = range(200, 216)
IN_DOCUMENT = Sizes(direct_max=LIMITS.waiting_max)
"""All claims wait in the document: the store then knows which claims are directly ahead."""
IN_BUCKETS = (Sizes(), Sizes(1, 2, 2))
"""A claim that joins a bucket does not read which claims are ahead of it there."""


class StoreSteps:
    """The store behind `apply`, with a clock that the test sets."""

    def __init__(
        self, network: Network, root: str = "/lockfast/default", sizes: Sizes = IN_DOCUMENT
    ) -> None:
        self._store = ZooKeeperStore("zookeeper://model", root, network, sizes)
        self._hides_ahead = sizes is not IN_DOCUMENT
        wire = self._store.caller_wire()
        assert isinstance(wire, ZooKeeperWire)
        self._wire = wire
        self._instant = Instant(0, 0)
        self._store.context.instant = lambda: self._instant  # type: ignore[method-assign]
        self._events: list[c.Event] = []
        self._ttl_ms: dict[str, int] = {}
        self._renewed_ms: dict[str, int] = {}
        self._renewals: dict[str, int] = {}
        self._ended: dict[str, c.SessionView] = {}
        self._ended_ms: dict[str, int] = {}
        self._watching: set[str] = set()

    def _until_ms(self) -> int:
        return self._store.network.now_ms() + 10_000

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        self._instant = Instant(now_ms, wall_us, by_server=False)
        if type(command) in READS:
            return self._read(command), []
        logged = len(self._events)
        self._raise_base()
        wakes = self._end_what_is_due()
        opening = command if isinstance(command, c.Open) else getattr(command, "open", None)
        if opening is not None and opening.session not in self._ttl_ms:
            self._ttl_ms[opening.session] = opening.ttl_ms
            self._renewed_ms[opening.session] = now_ms
        before = self._views()
        if isinstance(command, c.Watch):
            return self._watch(command), [*wakes, *self._of_the_log(logged)]
        if isinstance(command, c.Close | c.Expel | c.RevokeSession):
            wakes += self._hints(run(self._wire.common(self._until_ms())))
        outcome = run(self._wire.step(command, self._until_ms()))
        reply = outcome.reply
        if isinstance(command, c.Renew) and isinstance(reply, c.Renewed):
            self._renewed_ms[command.session] = now_ms
            self._renewals[command.session] = self._renewals.get(command.session, 0) + 1
        if opening is not None and self._store.context.own.get(opening.session) is None:
            self._ttl_ms.pop(opening.session)
        if isinstance(command, c.Close | c.Expel | c.RevokeSession):
            ending = ending_of(command)
            if isinstance(reply, c.Done) and reply.found:
                self._note_end(before[command.session], ending, now_ms)
        self._log(outcome)
        if self._hides_ahead:
            reply = without_ahead(reply)
        return self._known(reply), [*wakes, *outcome.wakes, *self._of_the_log(logged)]

    def _of_the_log(self, logged: int) -> list[c.Wake]:
        """The store has no log; return what watchers of the reference's log would receive."""
        if len(self._events) == logged:
            return []
        live = [one for one in self._watching if one not in self._ended]
        return [c.Wake(f"inbox of {one}", one, 0, c.WAKE_EVENTS) for one in live]

    def _watch(self, command: c.Watch) -> c.Reply:
        reply = run(self._wire.step(c.Look(command.session, 0), self._until_ms())).reply
        if isinstance(reply, c.Ended):
            return reply
        (self._watching.add if command.on else self._watching.discard)(command.session)
        return c.Done()

    def _log(self, outcome: Outcome) -> None:
        for event in outcome.events:
            self._events.append(event._replace(position=len(self._events) + 1))

    def _known(self, value: Any) -> Any:
        """Replies do not say how often the claims ahead were renewed."""
        if isinstance(value, c.Blocker):
            return value._replace(renewals=self._renewals.get(value.session, 0))
        if isinstance(value, tuple):
            items = [self._known(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    def _views(self) -> dict[str, c.SessionView]:
        reply = run(self._wire.step(c.Sessions(), self._until_ms())).reply
        assert isinstance(reply, c.SessionsReply)
        return {view.session: view for view in reply.sessions}

    def _note_end(self, view: c.SessionView, ending: Ending, now_ms: int) -> None:
        self._ended[view.session] = view._replace(
            left_ms=0, claims=0, ended=ending.reason, by=ending.by
        )
        self._ended_ms[view.session] = now_ms

    def _raise_base(self) -> None:
        """The reference's tokens follow the clock; the store's do when the base is raised."""
        requests = run(self._wire.common(self._until_ms()))
        run(raise_base(requests, 0))

    def _end_what_is_due(self) -> list[c.Wake]:
        """End sessions by the test's clock, and have the queues settled, as waiters would."""
        now_ms = self._instant.now_ms
        wakes: list[c.Wake] = []
        requests = run(self._wire.common(self._until_ms()))
        for session, ended_ms in list(self._ended_ms.items()):
            if ended_ms + ENDED_KEPT_MS <= now_ms:
                del self._ended_ms[session], self._ended[session]
                self._ttl_ms.pop(session, None)
                own = self._store.context.own.begin(session)
                if own.link is not None:
                    own.link.close()
                self._store.context.own.forget(session)
                self._watching.discard(session)
        endings = [
            Ending(session, EXPIRED, "expired")
            for session, ttl_ms in self._ttl_ms.items()
            if session not in self._ended and self._renewed_ms[session] + ttl_ms <= now_ms
        ]
        views = self._views()
        if endings:
            wakes += self._hints(requests)
        outcome = run(sessions.end(requests, endings))
        self._log(outcome)
        wakes += outcome.wakes
        for ending in endings:
            self._note_end(views[ending.session], ending, now_ms)
        due = [
            c.Place(one.kind, one.name, "")
            for one in run(load_all(requests))
            if 0 < one.document.closed_ms <= now_ms
            or any(0 < e.claim.until_ms <= now_ms for e in one.document.entries.values())
        ]
        outcome = run(settle(requests, due))
        self._log(outcome)
        return [*wakes, *outcome.wakes]

    def _hints(self, requests: Requests) -> list[c.Wake]:
        """A waiter watches the session before it; to compare, return what it would receive."""
        waiting = {
            of
            for one in run(load_all(requests))
            for of, entry in one.document.entries.items()
            if entry.claim.state == c.WAITING
        }
        return [c.Wake(f"inbox of {one}", one, n, c.WAKE_LOOK) for one, n in waiting]

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _read(self, command: c.Command) -> c.Reply:
        if isinstance(command, c.Events):
            end = len(self._events)
            oldest = 1 if self._events else end + 1
            if command.after is None:
                return c.EventsReply((), end, oldest, False)
            after = self._events[max(0, command.after) :]
            more = len(after) > command.limit
            return c.EventsReply(tuple(after[: command.limit]), end, oldest, more)
        outcome = run(self._wire.step(command, self._until_ms()))
        self._log(outcome)
        if isinstance(command, c.Sessions):
            assert isinstance(outcome.reply, c.SessionsReply)
            everybody = {**self._views(), **self._ended}
            found = [everybody[one] for one in sorted(everybody) if one > command.after]
            return c.SessionsReply(tuple(found[: command.limit]), len(found) > command.limit)
        reply: c.Reply = self._known(outcome.reply)
        return without_ahead(reply) if self._hides_ahead else reply

    def close(self) -> None:
        self._store.close()


def reference() -> Table:
    return Table(MemoryRows(), Limits(places_max=SEVERAL_MAX))


def without_ahead(reply: Any) -> Any:
    """Return a reply without the claims ahead of a waiting one."""
    if isinstance(reply, c.Queued):
        return c.Queued((), 0)
    if isinstance(reply, c.Busy):
        return c.Busy(())
    if isinstance(reply, c.Renewed):
        return reply._replace(looks=tuple((n, without_ahead(one)) for n, one in reply.looks))
    return reply


class TableWithoutAhead(Table):
    """The reference, if the store does not know which claims are directly ahead."""

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        reply, wakes = super().apply(command, now_ms, wall_us)
        return without_ahead(reply), [wake for wake in wakes if wake.what != c.WAKE_LOOK]


@pytest.mark.parametrize("seed", SEEDS_OF_MODEL)
def test_store_and_table_agree_on_the_model(seed: int) -> None:
    outcome = compare(lambda: StoreSteps(ModelNetwork()), reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("sizes", IN_BUCKETS)
@pytest.mark.parametrize("seed", SEEDS_OF_MODEL)
def test_store_and_table_agree_if_claims_wait_in_buckets(seed: int, sizes: Sizes) -> None:
    outcome = compare(
        lambda: StoreSteps(ModelNetwork(), sizes=sizes),
        lambda: TableWithoutAhead(MemoryRows(), Limits(places_max=SEVERAL_MAX)),
        seed,
        STEPS,
    )
    assert len(outcome.script) == STEPS


Make = Callable[[], StoreSteps]
