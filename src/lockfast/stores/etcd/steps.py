"""Commands as transactions: worked out on what is believed, carried out only if it is so.

The lock table runs over what is known of the keys. What it reads is compared in the
transaction that writes what it changed; if anything is different, the same request brings
what it is now, and the step is worked out again. So a grant is a write, never an observation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from math import ceil
from time import monotonic
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import Command, Reply, Wake
from lockfast.core.reading import EXPIRED
from lockfast.core.rows import ResourceRow
from lockfast.core.table import READS, Limits, Table
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.stores.etcd.errors import CompactedError, LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.knowledge import Knowledge, Missing, Want
from lockfast.stores.etcd.plan import Plan, TooLargeError, first_due_ms
from lockfast.stores.etcd.queueing import Queueing, may_queue
from lockfast.stores.etcd.requests import GRANT, KEEP_ALIVE, OPERATIONS_MAX, Json, revision_of
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    RELATIVE,
    Record,
    decode,
    end_of,
    finished_key,
    given,
    living_key,
    record_key,
    stored_key,
)
from lockfast.stores.etcd.shared import Shared
from lockfast.stores.etcd.view import AT_ONCE, View

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
PAUSE_S: Final = 0.001
PAUSE_S_MAX: Final = 0.1
MOVES: Final = 24
"""Claims that are granted in one transaction; the rest follows in others."""
SWEPT_MAX: Final = 1000
_SESSIONS: Final = (record_key(""), living_key(""))
LEASE_UNUSED_S: Final = 3600
"""Of sessions that end by a clock, to be compared: their leases must not end before."""
_NOT_REPEATABLE: Final = (c.Revoke, c.RevokeSession, c.Expel, c.Close, c.Resize, c.Break)
"""Their answers say whether it was this very request that did it."""


class Instant(NamedTuple):
    """What the clocks say, and whether sessions end by them or by their leases."""

    now_ms: int
    wall_us: int
    by_lease: bool = True

    @staticmethod
    def now() -> Instant:
        wall_us = time.time_ns() // 1000
        return Instant(wall_us // 1000, wall_us)


class Outcome(NamedTuple):
    """What became of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()


class Step:
    """One command on its way."""

    def __init__(
        self, gateway: Gateway, shared: Shared, command: Command, until_s: float,
        instant: Instant | None = None, *, guesses: bool = True,
    ) -> None:  # fmt: skip
        self.gateway = gateway
        self.shared = shared
        self.command = command
        self.until_s = until_s
        self.instant = instant
        self.known = Knowledge()
        self.account: tuple[int, int] | None = None
        self._session = str(getattr(command, "session", ""))
        self._guesses = guesses
        self._guessed = self._guessing = False
        """What is known is, or at some time was, only believed."""
        self._at_once = AT_ONCE
        self._failures = 0
        self._guesses_failed = False
        self._in_doubt = False
        self._leased = False
        self._now = instant or Instant.now()
        """When this attempt is; it stays so while more is read for it."""

    async def run(self) -> Outcome:
        """Carry the command out. Of those who open one session, the others let one go first."""
        session, shared = self._session, self.shared
        opens = isinstance(self.command, c.Enter) and self.command.open is not None
        if not opens or shared.knows(session):
            return await self._run()
        while session in shared.opening and monotonic() < self.until_s:
            await self.gateway.transport.pause(PAUSE_S)
        if shared.knows(session):
            return await self._run()
        shared.opening.add(session)
        try:
            return await self._run()
        finally:
            shared.opening.discard(session)

    async def _run(self) -> Outcome:
        """Work the command out and carry it out, again and again until it is as believed."""
        self._guess()
        while True:
            if monotonic() >= self.until_s:
                raise StoreUnavailableError(
                    self.shared.cluster.label,
                    f"{type(self.command).__name__.lower()} found no moment in which nobody "
                    "else changed the same lines",
                    "try again",
                )
            try:
                outcome = await self._attempt()
            except Missing as missing:
                if self._guessing:
                    # What is believed and what is read need not go together.
                    self._afresh()
                first = [] if self.known.revision else self._first_wants()
                await self._read([*first, *missing.wants])
                self.shared.keep(self.known, self._session)
                if first and isinstance(self.command, c.Enter) and not self._guessed:
                    self._guess()
                continue
            except TooLargeError:
                if self._at_once == 1:
                    raise StoreError(
                        self.shared.cluster.label, "a step is too large for one transaction"
                    ) from None
                self._at_once = max(1, self._at_once // 4)
                continue
            except LeaseGoneError:
                self.shared.forget(self._session)
                self._afresh()
                continue
            if outcome is not None:
                if isinstance(self.command, c.Enter) and isinstance(outcome.reply, c.Queued):
                    self.shared.places[self.command[:2]] = self.command.places
                return outcome

    def _guess(self) -> None:
        """Begin with what is believed, if that may do."""
        if self._guesses and not self._is_due():
            guess = self.shared.guess(self.command)
            if guess is not None:
                self.known, self._guessing, self._guessed = guess, True, True

    async def _again(self) -> None:
        """Others were quicker: give way to them for a moment, the longer the more there are.

        Whoever only wants to stand in line need not look at it, so that nobody is in its way.
        """
        self._failures += 1
        was_guess = self._guesses_failed
        if self._failures > 1:
            longest_s = min(PAUSE_S_MAX, PAUSE_S * 2**self._failures)
            await self.gateway.transport.pause(random.uniform(0, longest_s))
        if not was_guess and isinstance(self.command, c.Enter):
            if self.command.open is not None and not self.shared.knows(self._session):
                opening = Step(
                    self.gateway, self.shared, self.command.open, self.until_s, self.instant
                )
                await opening.run()
            self._guess()

    def _is_due(self) -> bool:
        """Whether something ends by itself first, so that no guess will do."""
        return self._now.now_ms >= self.shared.due_ms

    def _afresh(self) -> None:
        self.known, self._guessing = Knowledge(), False
        self._now = self.instant or Instant.now()

    def _first_wants(self) -> list[Want]:
        """What the command is sure to need, to be read at once."""
        command, session = self.command, self._session
        keys = [EPOCH_KEY] if type(command) not in READS else []
        if session:
            keys += [record_key(session), living_key(session)]
        n = getattr(command, "n", 0)
        if n:
            keys.append(r.claim_key(session, n))
        if isinstance(command, c.Enter):
            keys.append(finished_key(session, n))
        resources = [stored_key(r.resource_key(*p[:2])) for p in getattr(command, "places", ())]
        return [*map(Want, keys), *map(Want.resource, dict.fromkeys(resources))]

    # ── one attempt ──────────────────────────────────────────────────────────────────

    async def _attempt(self) -> Outcome | None:
        instant = self._now
        view = View(
            self.known,
            self.command,
            instant.now_ms,
            arrival=self.shared.arrival(self.known.revision or self.shared.cluster.revision),
            due_ms=self.shared.due_ms,
            by_lease=instant.by_lease,
            exact=not isinstance(self.command, c.Leave),
            at_once=self._at_once,
        )
        view.account = self.account
        table = Table(view, LIMITS)
        table.moves_left = MOVES if self._at_once == AT_ONCE else 2 * self._at_once
        reply, wakes = table.apply(self.command, instant.now_ms, instant.wall_us)
        # Who watches the log hears it without being told.
        wakes = [wake for wake in wakes if wake.what != c.WAKE_EVENTS]
        if self._in_doubt and await self._was_left(reply):
            return Outcome(c.Done())
        plan = Plan(self.shared.keys, view, self.shared.lease_of)
        plan.build(self.shared.abroad(wakes), instant.wall_us)
        self._finish_number(plan, reply)
        if instant.by_lease and type(self.command) in (c.Enter, c.Renew) and await self._bury(view):
            return None
        if type(self.command) in READS or not plan.writes:
            if self._guessing:
                self._afresh()  # nothing would show whether it is as believed
                return None
            return Outcome(reply, wakes)
        return await self._commit(plan, reply, wakes, table.unsettled)

    def _finish_number(self, plan: Plan, reply: Reply) -> None:
        """Note a claim number that leaves no claim behind: it must not come again."""
        command = self.command
        if (isinstance(command, c.Enter) and isinstance(reply, c.Busy)) or (
            isinstance(command, c.Leave) and not isinstance(reply, c.Ended)
        ):
            plan.finish(command.session, command.n)

    async def _was_left(self, reply: Reply) -> bool:
        """Whether a leave whose answer was lost has been carried out."""
        command = self.command
        if not isinstance(command, c.Leave) or reply != c.Done(found=False):
            return False
        key = finished_key(command.session, command.n)
        await self._read([Want(key)])
        return self.known.mod(key) > 0

    async def _bury(self, view: View) -> bool:
        """End the sessions met on the way whose leases are gone."""
        dead = [session for session in view.dead() if session != self._session]
        for session in dead:
            await Step(self.gateway, self.shared, c.Expel(session, EXPIRED), self.until_s).run()
        if dead:
            self._afresh()
        return bool(dead)

    async def _commit(
        self, plan: Plan, reply: Reply, wakes: list[Wake], unsettled: Sequence[ResourceRow]
    ) -> Outcome | None:
        operations = plan.operations()
        wants = list(dict.fromkeys([*self._first_wants(), *plan.wants()]))[:OPERATIONS_MAX]
        living = living_key(self._session)
        if living in plan.puts and not plan.view.known.mod(living):
            await self._lease(plan)
        otherwise = self._ranges(wants)
        queueing = None
        if self._guessing and may_queue(self.command, reply):
            assert isinstance(self.command, c.Enter)
            if self.command.places[0] in self.shared.busy:
                queueing = Queueing(plan, self.command, self._now.wall_us)
                otherwise = [queueing.transaction(otherwise)]
            else:
                wants, otherwise = [], []
        body = {
            "compare": list(plan.compares.values()),
            "success": operations,
            "failure": otherwise,
        }
        try:
            answer = await self.gateway.txn(body, self.until_s)
        except OutcomeUnknownError:
            if isinstance(self.command, _NOT_REPEATABLE):
                raise
            self._in_doubt = True
            self.shared.forget(self._session)
            self._afresh()
            return None
        if not answer.get("succeeded"):
            responses = answer.get("responses", ())
            if queueing is not None:
                nested = responses[0]["response_txn"]
                responses = nested.get("responses", ())
                if nested.get("succeeded"):
                    return await self._queued(queueing, responses, revision_of(answer))
            if not wants:
                assert isinstance(self.command, c.Enter)
                self.shared.met(self.command.places[0])
                self._afresh()
                self._guess()
                return None
            self._guesses_failed = self._guessing
            self._learn(revision_of(answer), wants, responses)
            self.shared.keep(self.known, self._session)
            await self._again()
            return None
        revision = revision_of(answer)
        due = self.shared.keys.found(answer["responses"][-1])
        self.shared.due_ms = first_due_ms(due.kvs)
        return await self._done(plan, revision, reply, wakes, unsettled)

    async def _queued(self, queueing: Queueing, responses: list[Json], revision: int) -> Outcome:
        """The lock was taken, and the claim stands in line."""
        known = queueing.known(responses, revision)
        try:
            reply = queueing.reply(known)
            doubtful = isinstance(reply, c.Queued) and queueing.is_long_held(reply, known)
        except Missing:
            doubtful = True
        if not doubtful:
            return Outcome(reply)
        again = Step(
            self.gateway, self.shared, self.command, self.until_s, self.instant, guesses=False
        )
        return await again.run()

    async def _done(
        self, plan: Plan, revision: int, reply: Reply, wakes: list[Wake],
        unsettled: Sequence[ResourceRow],
    ) -> Outcome:  # fmt: skip
        known = plan.known_after(revision)
        self.shared.keep(known, self._session)
        reply, wakes = resolved((reply, wakes), plan.epoch, revision)
        command = self.command
        if isinstance(command, c.Enter) and isinstance(reply, c.Granted):
            prefixes = tuple(stored_key(r.resource_key(*p[:2])) for p in command.places)
            held = known.part(prefixes)
            if len(prefixes) > 1:
                held.add(known.kvs[r.claim_key(command.session, command.n)])
            self.shared.hold(command.session, command.n, held)
        elif isinstance(command, c.Leave):
            self.shared.left(command.session, command.n)
            if len(command.places) == 1 and not wakes:
                self.shared.busy.discard(command.places[0])
        if isinstance(reply, c.Ended) or isinstance(command, c.Close):
            self.shared.forget(self._session)
            self.shared.forget_claims(self._session)
        for wake in wakes:
            if wake.what == c.WAKE_GRANTED and wake.session in self.shared.ears:
                self._hold_for(wake, known, plan.view)
        self.shared.tell(wakes)
        if self._leased and self._now.by_lease:
            await self._sweep()
        if plan.view.unfinished:
            again = Step(self.gateway, self.shared, command, self.until_s, self.instant)
            return await again.run()
        if unsettled:
            await self._settle(unsettled)
        return Outcome(reply, wakes)

    def _hold_for(self, wake: Wake, known: Knowledge, view: View) -> None:
        """Keep what is known of the line for a claim of this process that was granted."""
        claim = view.get(r.claim_key(wake.session, wake.n))
        if len(claim.places) == 1:
            prefix = stored_key(r.resource_key(*claim.places[0][:2]))
            self.shared.hold(wake.session, wake.n, known.part((prefix,)))

    async def _sweep(self) -> None:
        """End sessions that died and that nobody has met since: done by each that begins."""
        keys = self.shared.keys
        reads = [keys.range(prefix, end_of(prefix), SWEPT_MAX) for prefix in _SESSIONS]
        answer = await self.gateway.txn({"success": reads}, self.until_s, repeatable=True)
        records, living = (keys.found(response).kvs for response in answer["responses"])
        lives = {kv.key[2:] for kv in living}
        dead = [
            kv.key[2:]
            for kv in records
            if kv.key[2:] not in lives and not Record(*decode(kv.value)).ended
        ]
        if len(living) < SWEPT_MAX:
            for session in dead:
                expel = c.Expel(session, EXPIRED)
                await Step(self.gateway, self.shared, expel, self.until_s).run()

    async def _settle(self, resources: Sequence[ResourceRow]) -> None:
        """Go on where one transaction could not grant everything."""
        for kind, name in dict.fromkeys((row.kind, row.name) for row in resources):
            await Settle(
                self.gateway, self.shared, c.Inspect(kind, name), self.until_s, self.instant
            ).run()

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _ranges(self, wants: Sequence[Want], revision: int = 0) -> list[Json]:
        keys = self.shared.keys
        return [
            keys.range(w.start, w.stop, w.limit, reverse=w.reverse, revision=revision)
            for w in wants
        ]

    async def _read(self, wants: Sequence[Want]) -> None:
        at = self.known.revision
        wants = list(dict.fromkeys(wants))[:OPERATIONS_MAX]
        try:
            answer = await self.gateway.txn(
                {"success": self._ranges(wants, at)}, self.until_s, repeatable=True
            )
        except CompactedError:
            self._afresh()
            return
        if not self.known.revision:
            self.known.revision = revision_of(answer)
        for want, response in zip(wants, answer.get("responses", ()), strict=True):
            self.known.learn(want, self.shared.keys.found(response))

    def _learn(self, revision: int, wants: Sequence[Want], responses: Sequence[Json]) -> None:
        """Take over what is so, where it is not as it was believed to be."""
        self._afresh()
        self.known.revision = revision
        for want, response in zip(wants, responses, strict=True):
            self.known.learn(want, self.shared.keys.found(response))

    async def _lease(self, plan: Plan) -> None:
        """Have the lease that the session is to live under."""
        if self._leased:
            return
        row = plan.view.get(r.session_key(self._session))
        by_lease = self.instant is None or self.instant.by_lease
        ttl_s = ceil(row.ttl_ms / 1000) if by_lease else LEASE_UNUSED_S
        lease = {"ID": str(self.shared.lease_of(self._session)), "TTL": str(ttl_s)}
        try:
            await self.gateway.call(GRANT, lease, self.until_s)
        except StoreError as error:
            if "lease already exists" not in str(error):
                raise
            await self.gateway.call(KEEP_ALIVE, {"ID": lease["ID"]}, self.until_s)
        self._leased = True


class Settle(Step):
    """Lets everything move that can, at one resource."""

    async def _attempt(self) -> Outcome | None:
        assert isinstance(self.command, c.Inspect)
        instant = self._now
        view = View(
            self.known, self.command, instant.now_ms,
            arrival=self.shared.arrival(self.known.revision), due_ms=self.shared.due_ms,
            by_lease=instant.by_lease, exact=False, at_once=self._at_once,
        )  # fmt: skip
        table = Table(view, LIMITS)
        table.moves_left = 2 * self._at_once
        table.begin(instant.now_ms, instant.wall_us)
        table.settle([c.Place(self.command.kind, self.command.name, "")])
        table.flush()
        plan = Plan(self.shared.keys, view, self.shared.lease_of)
        plan.build(self.shared.abroad(table.wakes), instant.wall_us)
        if not plan.writes:
            return Outcome(c.Done())
        return await self._commit(plan, c.Done(), table.wakes, table.unsettled)


def resolved(value: Any, epoch: int, revision: int) -> Any:
    """Answers and wakes with the tokens that a transaction has given."""
    if isinstance(value, int):
        return given(value, epoch, revision) if value >= RELATIVE else value
    if isinstance(value, list):
        return [resolved(item, epoch, revision) for item in value]
    if isinstance(value, tuple):
        items = [resolved(item, epoch, revision) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
