"""Commands as transactions: worked out on what is believed, carried out only if it is so.

The lock table runs over what is known of the keys. What it reads is compared in the
transaction that writes what it changed; if anything is different, the same request brings
what it is now, and the step is worked out again. So a grant is a write, never an observation.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import suppress
from math import ceil
from time import monotonic
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import Command, Reply, Wake
from lockfast.core.reading import EXPIRED
from lockfast.core.rows import ResourceRow
from lockfast.core.table import READS, Limits, Table
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.stores.etcd.alone import Held
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.knowledge import Knowledge, Missing, Want
from lockfast.stores.etcd.leases import dead_sessions, ending_of, have_lease
from lockfast.stores.etcd.numbered import Numbered
from lockfast.stores.etcd.outcome import Outcome, resolved
from lockfast.stores.etcd.plan import Plan, TooLargeError, first_due_ms
from lockfast.stores.etcd.queueing import Queueing, may_queue
from lockfast.stores.etcd.requests import Json, revision_of
from lockfast.stores.etcd.rows import (
    FOLLOWED,
    alone_key,
    encode,
    inbox_key,
    living_key,
    resource_alone,
    stored_key,
)
from lockfast.stores.etcd.shared import Row
from lockfast.stores.etcd.view import AT_ONCE, View

SEVERAL_MAX: Final = 40
LIMITS: Final = Limits(places_max=SEVERAL_MAX)
PAUSE_S: Final = 0.001
PAUSE_S_MAX: Final = 0.016
"""Who has failed often must not be passed by all who have just come."""
MOVES: Final = 24
"""Claims that are granted in one transaction; the rest follows in others."""
LEASE_UNUSED_S: Final = 3600
"""Of sessions that end by a clock, to be compared: their leases must not end before."""
_NOT_REPEATABLE: Final = (c.Revoke, c.RevokeSession, c.Expel, c.Close, c.Resize, c.Break)
"""Their answers say whether it was this very request that did it."""


class Step(Numbered):
    """One command on its way."""

    limits = LIMITS
    account: tuple[int, int] | None = None
    """Count and checksum of the claims of a session that is renewed."""
    _at_once = AT_ONCE
    _failures = 0
    _guess_failed = False
    """The last attempt that others were quicker than was a guess."""
    _leased = False
    """The session's lease is new."""
    _unfinished: Collection[str] = ()
    """Sessions that one transaction could not end with all their claims."""
    _unsettled: Sequence[ResourceRow] = ()
    """Where one transaction could not grant everything."""

    async def run(self) -> Outcome:
        """Carry the command out, in as many transactions as it takes.

        Raises StoreUnavailableError only if none of them can have been carried out.
        """
        try:
            outcome = await self._run_in_turn()
            unsettled = list(self._unsettled)
            for session in self._unfinished:
                self._in_doubt = True
                unsettled += await self._finish(session)
        except StoreUnavailableError as error:
            if self._in_doubt:
                raise OutcomeUnknownError(error.store, error.what, error.advice) from error
            raise
        with suppress(StoreError):  # what we do is done: keep-alives of others see to the rest
            if self._leased and self.now.by_lease:
                await self._end_all(await dead_sessions(self.gateway, self.shared, self.until_s))
            await self._settle(unsettled)
        return outcome

    async def _finish(self, session: str) -> list[ResourceRow]:
        """Go on with the end of a session; returns where more can be granted."""
        command = self.command
        if isinstance(command, c.Expel):
            command = c.Expel(session, command.reason)  # it cannot be renewed any more
        elif not isinstance(command, c.Close | c.RevokeSession):
            command = c.Expel(session, EXPIRED)
        unsettled: list[ResourceRow] = []
        unfinished = True
        while unfinished:
            step = Step(self.gateway, self.shared, command, self.until_s, self.instant)
            await step._run()
            unsettled += step._unsettled
            unfinished = session in step._unfinished
        return unsettled

    async def _run_in_turn(self) -> Outcome:
        """Of those who open one session, the others let one go first."""
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
        await self._fence()
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
                await self._read_more(missing.wants)
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

    async def _again(self) -> None:
        """Others were quicker: give way to them for a moment, the longer the more there are.

        Whoever only wants to stand in line need not look at it, so that nobody is in its way.
        """
        self._failures += 1
        if self._failures > 1:
            longest_s = min(PAUSE_S_MAX, PAUSE_S * 2**self._failures)
            await self.gateway.transport.pause(random.uniform(0, longest_s))
        if not self._guess_failed and isinstance(self.command, c.Enter):
            if self.command.open is not None and not self.shared.knows(self._session):
                opening = Step(
                    self.gateway, self.shared, self.command.open, self.until_s, self.instant
                )
                await opening.run()
            self._guess()

    # ── one attempt ──────────────────────────────────────────────────────────────────

    async def _attempt(self) -> Outcome | None:
        instant = self.now
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
        view.account = self.account or await self._claims_if_many()
        view.finished = self._numbers.finished
        if isinstance(self.command, c.Enter) and self._n in self._numbers.answered:
            view.is_where_it_says = False
        table = Table(view, self.limits)
        table.moves_left = MOVES if self._at_once == AT_ONCE else 2 * self._at_once
        reply, wakes = table.apply(self.command, instant.now_ms, instant.wall_us)
        # Who watches the log hears it without being told.
        wakes = [wake for wake in wakes if wake.what != c.WAKE_EVENTS]
        if self._was_left(reply):
            return self._noted(Outcome(c.Done()))
        plan = Plan(self.shared.keys, view, self.shared.lease_of)
        word = self._word_of(plan)
        plan.build(self.shared.abroad(wakes), instant.wall_us)
        if isinstance(self.command, c.Renew):
            plan.deletes.update(dict.fromkeys(self.shared.alone_of(self._session).unused(), ""))
        if isinstance(self.command, c.Leave) and not self._is_sure:
            plan.fence(self._session)
        if instant.by_lease and type(self.command) in (c.Enter, c.Renew) and await self._bury(view):
            return None
        if type(self.command) in READS or not plan.writes:
            if self._guessing:
                self._afresh()  # nothing would show whether it is as believed
                return None
            if word and isinstance(reply, c.Granted) and own_key(self.command) in view.alone:
                mod = view.known.mod(resource_alone(word))
                self.shared.alone_of(self._session).hold(self._n, Held(reply.token, word, mod))
            return self._noted(Outcome(reply, wakes))
        return await self._commit(plan, reply, wakes, table.unsettled)

    def _word_of(self, plan: Plan) -> str:
        """Where word is left of a claim that is alone; "": it cannot be, it has a row then."""
        command = self.command
        if not isinstance(command, c.Enter) or len(command.places) != 1:
            return ""
        alone = self.shared.alone_of(command.session)
        word = alone_key(command.session, stored_key(r.resource_key(*command.places[0][:2])))
        has_word = alone.has_word(word)
        plan.may_be_alone = has_word or not alone.is_full()
        plan.word, plan.has_word = word, has_word
        return word

    async def _claims_if_many(self) -> tuple[int, int] | None:
        """How many claims the session has, if there may be as many as it can have."""
        shared, keys, session = self.shared, self.shared.keys, self._session
        if not isinstance(self.command, c.Enter) or shared.claims[session] < self.limits.claims_max:
            return None
        prefix = r.claims_prefix(session)
        count = keys.range(prefix, r.after_prefix(prefix), count_only=True)
        answer = await self.gateway.txn({"success": [count]}, self.until_s, repeatable=True)
        with_rows = keys.found(answer["responses"][0]).count
        shared.claims[session] = with_rows + len(shared.alone_of(session).held)
        return shared.claims[session], 0

    async def _bury(self, view: View) -> bool:
        """End the sessions met on the way whose leases are gone."""
        dead = [ending_of(*one) for one in view.dead() if one[0] != self._session]
        await self._end_all(dead)
        if dead:
            self._afresh()
        return bool(dead)

    async def _commit(
        self, plan: Plan, reply: Reply, wakes: list[Wake], unsettled: Sequence[ResourceRow]
    ) -> Outcome | None:
        believes = self._guessing and self.now.by_lease
        operations = plan.operations(looks_for_due=not believes)
        if plan.opens(self._session):
            await self._lease(plan)
        wants: list[Want] = []
        queueing = None
        if self._guessing and isinstance(self.command, c.Leave):
            wants = [Want.resource(prefix) for prefix in plan.view.touched]
        elif not (self._guessing and may_queue(self.command, reply)):
            wants = plan.wants(self._first_wants())
        elif self.command.places[0] in self.shared.busy:  # type: ignore[union-attr]
            wants = plan.wants(self._first_wants())
            queueing = Queueing(plan, self.now.wall_us)
        otherwise = self._ranges(wants)
        if queueing is not None:
            otherwise = [queueing.transaction(otherwise)]
        compares = list(plan.compares.values())
        body = {"compare": compares, "success": operations, "failure": otherwise}
        try:
            answer = await self.gateway.txn(body, self.until_s)
        except BaseException as error:
            if isinstance(self.command, _NOT_REPEATABLE):
                raise
            self.broke_off(error, plan.view.known.kvs.get(living_key(self._session)))
            if not isinstance(error, OutcomeUnknownError):
                raise
            await self._fence()
            return None
        if not answer.get("succeeded"):
            return await self._refused(answer, wants, queueing)
        if believes:
            self.shared.due_ms = min(self.shared.due_ms, plan.due_ms())
        else:
            due = self.shared.keys.found(answer["responses"][-1])
            self.shared.due_ms = first_due_ms(due.kvs)
        self._unfinished, self._unsettled = plan.view.unfinished, unsettled
        return self._done(plan, revision_of(answer), reply, wakes)

    def was_not_so(self, answer: Json, wants: Sequence[Want]) -> None:
        """Take over what a transaction has found that went by what was believed."""
        self._guessing = self._guess_failed = True
        self._learn(revision_of(answer), wants, answer.get("responses", ()))

    async def _refused(
        self, answer: Json, wants: Sequence[Want], queueing: Queueing | None
    ) -> Outcome | None:
        """It was not as believed: at best the claim stands in line now, else begin anew."""
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
        self._guess_failed = self._guessing
        self._learn(revision_of(answer), wants, responses)
        await self._again()
        return None

    async def _queued(self, queueing: Queueing, responses: list[Json], revision: int) -> Outcome:
        """The lock was taken, and the claim stands in line."""
        known = queueing.known(responses, revision)
        try:
            reply = queueing.reply(known)
            doubtful = isinstance(reply, c.Queued) and queueing.is_long_held(reply, known)
        except Missing:
            doubtful = True
        self.shared.claims[self._session] += 1
        if not doubtful:
            outcome = self._noted(Outcome(reply))
            await self._tell_holder(queueing.word_for_holder(known))
            return outcome
        self._in_doubt = True  # it is in line, whatever is found out about those ahead
        again = Step(
            self.gateway, self.shared, self.command, self.until_s, self.instant, guesses=False
        )
        return await again.run()

    async def _tell_holder(self, word: tuple[str, int, list[Any]] | None) -> None:
        """Let the holder know who follows; if it does not hear of it, it finds out."""
        if word is None:
            return
        session, n, line = word
        if session in self.shared.listeners:
            self.shared.followed(session, n, line)
            return
        keys, said = self.shared.keys, encode([[n, FOLLOWED, 0, line]])
        holds = [keys.unchanged(line[0], line[2]), keys.present(living_key(session))]
        body = {"compare": holds, "success": [keys.put(inbox_key(session), said)]}
        with suppress(StoreError):
            await self.gateway.txn(body, self.until_s)

    def _done(self, plan: Plan, revision: int, reply: Reply, wakes: list[Wake]) -> Outcome:
        known = plan.known_after(revision)
        self.shared.keep(known, self._session)
        reply, wakes = resolved((reply, wakes), plan.epoch, revision)
        command = self.command
        if isinstance(command, c.Enter) and isinstance(reply, c.Granted | c.Queued):
            self.shared.claims[self._session] += 1
        if isinstance(command, c.Enter) and isinstance(reply, c.Granted):
            if plan.is_alone:
                alone = Held(reply.token, plan.word, revision)
                self.shared.alone_of(self._session).hold(command.n, alone)
                held = known.kvs[stored_key(r.resource_key(*command.places[0][:2]))]
                self.shared.hold(self._session, command.n, Row(*held[:3]))
            else:
                self._hold(command, known)
        elif isinstance(command, c.Leave):
            self.shared.left(command.session, command.n)
            self.shared.claims[self._session] -= reply != c.Done(found=False)
            if len(command.places) == 1 and not wakes:
                self.shared.busy.discard(command.places[0])
        if isinstance(command, c.Close):
            self.shared.forget(self._session)
            self.shared.forget_claims(self._session)
        for wake in wakes:
            if wake.what == c.WAKE_GRANTED and wake.session in self.shared.listeners:
                self._hold_for(wake, known, plan.view)
        self.shared.tell(wakes)
        return self._noted(Outcome(reply, wakes))

    def _hold(self, command: c.Enter, known: Knowledge) -> None:
        """Keep what is known of the lines that the claim holds, for when it leaves them."""
        prefixes = tuple(stored_key(r.resource_key(*p[:2])) for p in command.places)
        held = known.part(prefixes)
        if len(prefixes) > 1:
            held.add(known.kvs[r.claim_key(command.session, command.n)])
        self.shared.hold(command.session, command.n, held)

    def _hold_for(self, wake: Wake, known: Knowledge, view: View) -> None:
        """Keep what is known of the line for a claim of this process that was granted."""
        claim = view.get(r.claim_key(wake.session, wake.n))
        if len(claim.places) == 1:
            prefix = stored_key(r.resource_key(*claim.places[0][:2]))
            self.shared.hold(wake.session, wake.n, known.part((prefix,)))

    async def _end_all(self, endings: Sequence[Command]) -> None:
        """End sessions that live no more."""
        for ending in endings:
            await Step(self.gateway, self.shared, ending, self.until_s).run()

    async def _settle(self, resources: Sequence[ResourceRow]) -> None:
        """Go on where one transaction could not grant everything."""
        left = dict.fromkeys((row.kind, row.name) for row in resources)
        while left:
            inspect = c.Inspect(*left.popitem()[0])
            step = Settle(self.gateway, self.shared, inspect, self.until_s, self.instant)
            await step._run()
            left.update(((row.kind, row.name), None) for row in step._unsettled)

    async def _lease(self, plan: Plan) -> None:
        """Have the lease that the session is to live under."""
        if self._leased:
            return
        row = plan.view.get(r.session_key(self._session))
        ttl_s = ceil(row.ttl_ms / 1000) if self.now.by_lease else LEASE_UNUSED_S
        await have_lease(self.gateway, self.shared, self._session, ttl_s, self.until_s)
        self._leased = True


def own_key(command: Command) -> str:
    """The key of the claim that a command is of."""
    return r.claim_key(command.session, command.n)  # type: ignore[union-attr]


class Settle(Step):
    """Lets everything move that can, at one resource."""

    async def _attempt(self) -> Outcome | None:
        assert isinstance(self.command, c.Inspect)
        instant = self.now
        view = View(
            self.known, self.command, instant.now_ms,
            arrival=self.shared.arrival(self.known.revision), due_ms=self.shared.due_ms,
            by_lease=instant.by_lease, exact=False, at_once=self._at_once,
        )  # fmt: skip
        table = Table(view, self.limits)
        table.moves_left = 2 * self._at_once
        table.begin(instant.now_ms, instant.wall_us)
        table.settle([c.Place(self.command.kind, self.command.name, "")])
        table.flush()
        plan = Plan(self.shared.keys, view, self.shared.lease_of)
        plan.build(self.shared.abroad(table.wakes), instant.wall_us)
        if not plan.writes:
            return Outcome(c.Done())
        return await self._commit(plan, c.Done(), table.wakes, table.unsettled)
