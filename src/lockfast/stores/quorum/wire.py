"""The protocol: each command of a client becomes one flight, a round of requests to all nodes.

The client proposes the token as a ballot. If a majority accepts it, the client holds the lock for
one TTL, counted from before the requests were sent. Any two majorities share a node, so there is
one holder, and tokens increase in grant order. A proposal that does not win a majority is
withdrawn at every node, including those whose answer is still outstanding, so that no late
acceptance remains.

A keep-alive is one flight as well. It succeeds if a majority of nodes confirms every claim of the
session. A second flight updates nodes that were unreachable or restarted, so that a long lease
survives any number of restarts, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.core.reasons import CLOSED, EXPIRED, NOT_HELD, UNKNOWN_SESSION
from lockfast.core.table import Limits, why_invalid, why_too_large
from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.ports import Runtime
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum import views
from lockfast.stores.quorum.flights import Answers, Flights, Progress
from lockfast.stores.quorum.session_records import Claim, Phase, SessionRecord, SessionRecords

LIMITS: Final = Limits(places_max=1)
NO_SESSION: Final = c.Ended(UNKNOWN_SESSION)
TTL_MS_MAX: Final = 1 << 50
"""No limit, for nodes that never lose their state."""
PROPOSALS_MAX: Final = 3
TAKEN: Final = (m.HELD, m.SHUT, m.SILENT)
"""Refusals after which a different ballot would be refused as well."""
RETRY_MS: Final = 20
"""The base of the back-off; multiplied by the number of contenders and a random factor."""
RETRY_MS_MAX: Final = 1000
SPLIT_MS: Final = 4
"""The base of the back-off if no proposal won a majority: the next attempt probably will."""
GIVE_UP_SHARE: Final = 2 / 3
"""Declare a claim lost that had no majority for this share of the TTL: while it is unconfirmed, no
claim of the session can be renewed."""


def nobody_late(node: int, answer: m.Answer) -> None:
    """Ignore an answer that arrives late."""


class QuorumWire:
    """Executes the commands of callers or of the keeper; the same code for every runtime."""

    def __init__(
        self,
        records: SessionRecords,
        flights: Flights,
        runtime: Runtime,
        label: str,
        ttl_ms_max: int = TTL_MS_MAX,
    ) -> None:
        self._records = records
        self._flights = flights
        self._runtime = runtime
        self._label = label
        self._majority = records.majority
        self._ttl_ms_max = ttl_ms_max

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        carry_out: Callable[[c.Command, int], object] = _METHODS[type(command)].__get__(self)
        reply: c.Reply = await carry_out(command, timeout_ms)  # type: ignore[misc]
        return reply

    def close(self) -> None:
        self._flights.close()

    # ── flights ──────────────────────────────────────────────────────────────────────

    async def _ask_all(
        self, request: m.Request, timeout_ms: int, *, everybody: bool = False
    ) -> Answers:
        """Send the same request to all nodes. Raises unless a majority answers.

        With `everybody`, wait briefly for the nodes that are slower than the majority.
        """

        def judge(answers: Answers) -> Progress:
            answered = count_answers(answers)
            if answered < self._majority:
                return done_if(self._is_hopeless(answers))
            if everybody and None in answers:
                return Progress.SOON
            return Progress.DONE

        requests = [request] * self._records.nodes
        answers = await self._flights.ask(requests, judge, timeout_ms, nobody_late)
        self._require_majority(answers)
        return answers

    def _is_hopeless(self, answers: Answers) -> bool:
        """Return True if too many nodes have failed for a majority to answer."""
        failed = sum(isinstance(answer, m.NoAnswer) for answer in answers)
        return failed > len(answers) - self._majority

    def _require_majority(self, answers: Answers) -> None:
        answered = count_answers(answers)
        if answered >= self._majority:
            return
        failed = [answer for answer in answers if isinstance(answer, m.NoAnswer)]
        errors = [answer.error for answer in failed]
        surely_not = [answer for answer in failed if not answer.maybe]
        if len(surely_not) > len(answers) - self._majority:
            wrong = [e for e in errors if isinstance(e, StoreMisconfiguredError)]
            if len(wrong) > len(answers) - self._majority:
                raise wrong[0]
            raise StoreUnavailableError(self._label, self._too_few(answered, errors))
        raise OutcomeUnknownError(self._label, self._too_few(answered, errors))

    def _too_few(self, answered: int, errors: Sequence[Exception]) -> str:
        text = f"{answered} of {self._records.nodes} nodes answered, {self._majority} are needed"
        if errors:
            what = errors[0].what if isinstance(errors[0], StoreError) else errors[0]
            text += f" ({what})"
        return text

    def _ended(self, answers: Answers) -> c.Ended | None:
        """Return why the session ended, if too few nodes still have it for a majority."""
        reasons = [
            answer.reason
            for answer in answers
            if isinstance(answer, m.Taken | m.Given | m.Kept | m.SessionClaims)
            and answer.status in (m.UNKNOWN, m.ENDED)
        ]
        if len(reasons) <= self._records.nodes - self._majority:
            return None
        # A node that was unreachable for a TTL only knows that; others may know the real reason.
        known = [reason for reason in reasons if reason not in ("", EXPIRED)]
        if known:
            return c.Ended(known[0])
        return c.Ended(EXPIRED) if EXPIRED in reasons else NO_SESSION

    def _record(self, session: str) -> SessionRecord | c.Ended:
        """Return the session's record, or the reply if it has none or has ended."""
        record = self._records.sessions.get(session)
        if record is None:
            return NO_SESSION
        return record.ended or record

    # ── acquiring ──────────────────────────────────────────────────────────────────────

    async def _enter(self, command: c.Enter, timeout_ms: int) -> c.Reply:
        return await self._propose(command, 0, timeout_ms)

    async def _contend(self, command: c.Contend, timeout_ms: int) -> c.Reply:
        since_us = self._records.wall_us() - 1000 * command.waited_ms
        return await self._propose(command.enter, max(1, since_us), timeout_ms)

    async def _propose(self, enter: c.Enter, since_us: int, timeout_ms: int) -> c.Reply:
        refused = self._refused(enter)
        if refused is not None:
            if enter.open is not None and self._too_large(enter.open) is None:
                await self._open(enter.open, timeout_ms)
            return refused
        record = self._records.session(enter.open) if enter.open else self._record(enter.session)
        if isinstance(record, c.Ended):
            return record
        if record.ended:
            return record.ended
        until_ms = self._runtime.now_ms() + timeout_ms
        for _ in range(PROPOSALS_MAX):
            if record.was_released(enter.n):
                return c.Refused(c.WHY_FINISHED, "this claim was given up")
            claim = record.claims.get(enter.n) or self._new_claim(record, enter, since_us)
            with self._records.mutex:
                flight = record.next_flight()
                claim.take = claim.take._replace(flight=flight)
            proposal = Proposal(self._records, record, flight, enter.n, claim)
            answers = await self._flights.ask(
                proposal.requests(), proposal.judge, timeout_ms, proposal.late
            )
            proposal.note(answers)
            with self._records.mutex:
                is_wanted = claim.phase in (Phase.PROPOSED, Phase.HELD)
                is_won = is_wanted and len(claim.at) >= self._majority
                if is_won and record.is_valid(claim, self._majority):
                    claim.phase = Phase.HELD
                    return c.Granted(claim.take.ballot, 0, claim.place.mode)
            reply = self._not_won(record, enter.n, claim, answers)
            refusals = sum(isinstance(a, m.Taken) and a.status in TAKEN for a in answers)
            is_refused = refusals > self._records.nodes - self._majority
            timeout_ms = until_ms - self._runtime.now_ms()
            if is_refused or not isinstance(reply, c.Busy) or timeout_ms <= 0:
                break
            # The lock may be free: only the ballot was refused, and the answers say which one
            # fits; or some answers came too late.
        return reply

    def _new_claim(self, record: SessionRecord, enter: c.Enter, since_us: int) -> Claim:
        place = enter.places[0]
        take = m.Take(
            enter.session,
            enter.n,
            place.kind,
            place.name,
            self._records.next_ballot(),
            enter.actor,
            enter.value,
            enter.max_hold_ms,
            enter.lock_delay_ms,
            enter.window_ms,
            since_us,
        )
        # Read the clock before the request is sent: nodes start counting the TTL later.
        claim = Claim(place, take, self._runtime.now_ms())
        with self._records.mutex:
            record.claims[enter.n] = claim
        return claim

    def _not_won(self, record: SessionRecord, n: int, claim: Claim, answers: Answers) -> c.Reply:
        """Withdraw the ballot wherever it may have been accepted; reply who holds the lock."""
        with self._records.mutex:
            record.claims.pop(n, None)
        give = _give(claim, undo=True)
        self._flights.post([give if _may_have_accepted(answer) else None for answer in answers])
        ended = self._ended(answers)
        if ended is not None:
            record.ended = ended
            return ended
        try:
            self._require_majority(answers)
        except OutcomeUnknownError as error:
            # Any acceptance is being withdrawn, so the request had no effect.
            raise StoreUnavailableError(error.store, error.what) from None
        taken = [answer for answer in answers if isinstance(answer, m.Taken)]
        ahead = views.blockers(taken, self._records.nodes)
        return c.Busy(ahead, self._retry_ms(taken, bool(ahead)))

    def _retry_ms(self, taken: Sequence[m.Taken], is_held: bool) -> int:
        """Return when to propose again if no wake arrives first."""
        contenders = max((answer.contenders for answer in taken), default=0)
        random = 0.5 + self._runtime.random()
        if not is_held and all(a.status not in (m.SHUT, m.SILENT) for a in taken):
            return 1 + int(SPLIT_MS * (1 + contenders) * random)
        # Nodes that refuse for a known time will not accept earlier.
        free = sorted(answer.free_ms for answer in taken if answer.status != m.OK)
        free_ms = free[min(self._majority, len(free)) - 1] if free else RETRY_MS_MAX
        retry_ms = min(RETRY_MS_MAX, RETRY_MS * (1 + contenders) * random)
        return max(1, int(min(retry_ms, free_ms + SPLIT_MS * random)))

    def _refused(self, enter: c.Enter) -> c.Refused | None:
        """Return why this claim can never be granted, or None."""
        invalid = why_invalid(enter.places, LIMITS.places_max)
        if invalid:
            return c.Refused(c.WHY_INVALID, invalid)
        if enter.value is not None and len(enter.value.encode()) > LIMITS.text_max:
            size = len(enter.value.encode())
            return c.Refused(c.WHY_TOO_LARGE, "value", size, LIMITS.text_max)
        return self._too_large(enter.open) if enter.open is not None else None

    def _too_large(self, opening: c.Open) -> c.Refused | None:
        refused = why_too_large(opening, LIMITS.text_max)
        if refused is not None:
            return refused
        if opening.ttl_ms > self._ttl_ms_max:
            # A restarted node refuses ballots for this long only.
            what = "the TTL in ms (?silence= bounds it)"
            return c.Refused(c.WHY_TOO_LARGE, what, opening.ttl_ms, self._ttl_ms_max)
        return None

    # ── releasing ────────────────────────────────────────────────────────────────────

    async def _leave(self, command: c.Leave, timeout_ms: int) -> c.Reply:
        record = self._record(command.session)
        if isinstance(record, c.Ended):
            return record
        with self._records.mutex:
            claim = record.claims.get(command.n)
            if claim is None:
                record.release(command.n)
                return c.Done(found=False)
            was, claim.phase = claim.phase, Phase.LEAVING
        was_held = was in (Phase.HELD, Phase.LOST)
        close_ms = command.close_ms
        if was is Phase.LOST:
            close_ms = max(close_ms, claim.take.lock_delay_ms)
        request = _give(claim, close_ms=close_ms, undo=not was_held)
        answers = await self._ask_all(request, timeout_ms)
        with self._records.mutex:
            record.release(command.n)
        missing = sum(isinstance(a, m.Given) and not a.found for a in answers)
        if not was_held or missing <= self._records.nodes - self._majority:
            return c.Done(found=was_held)
        ended = self._ended(answers)
        if ended is not None:
            record.ended = ended
            return ended
        return c.Done(found=False)

    # ── sessions ─────────────────────────────────────────────────────────────────────

    async def _open(self, command: c.Open, timeout_ms: int) -> c.Reply:
        refused = self._too_large(command)
        if refused is not None:
            return refused
        record = self._records.session(command)
        if record.ended:
            return record.ended
        sent_ms = self._runtime.now_ms()
        answers = await self._flights.ask(
            [record.open] * self._records.nodes, self._opened, timeout_ms, nobody_late
        )
        self._require_majority(answers)
        ended = self._ended(answers)
        if ended is not None:
            record.ended = ended
            return ended
        have = count_opened(answers)
        if have < self._majority:
            what = f"{have} of {self._records.nodes} nodes have opened the session"
            raise OutcomeUnknownError(self._label, f"{what}, {self._majority} are needed")
        created = [a.status == m.OK and not a.found for a in answers if isinstance(a, m.Given)]
        with self._records.mutex:
            for node, answer in enumerate(answers):
                # A node that already had the session has not renewed it.
                if isinstance(answer, m.Given) and answer.status == m.OK and not answer.found:
                    record.cover(node, sent_ms)
        return c.Done(found=sum(created) < self._majority)

    def _opened(self, answers: Answers) -> Progress:
        """Judge an `Open`: it takes a majority that has the session, or that has ended it.

        A node that was slow to receive the session's first request may have it although all
        others have ended it.
        """
        is_opened = count_opened(answers) >= self._majority
        is_decided = is_opened or self._ended(answers) is not None
        return done_if(is_decided or None not in answers or self._is_hopeless(answers))

    async def _renew(self, command: c.Renew, timeout_ms: int) -> c.Reply:
        record = self._record(command.session)
        if isinstance(record, c.Ended):
            return record
        renewal = Renewal(self._records, record, self._runtime.now_ms())
        until_ms = renewal.sent_ms + timeout_ms
        answers = await self._flights.ask(
            [m.Keep(command.session)] * self._records.nodes,
            renewal.judge,
            timeout_ms,
            renewal.late,
        )
        for node, answer in enumerate(answers):
            if isinstance(answer, m.Kept):
                renewal.late(node, answer)
        ended = self._ended(answers)
        if ended is not None:
            record.ended = ended
            return ended
        self._require_majority(answers)
        if record.outdated:
            left_ms = max(1, until_ms - self._runtime.now_ms())
            await self._bring_up_to_date(record, renewal.sent_ms, left_ms)
        return self._conclude(record, command, renewal.sent_ms)

    async def _bring_up_to_date(
        self, record: SessionRecord, renewal_ms: int, timeout_ms: int
    ) -> None:
        """Send the session's claims to nodes that missed some of them."""
        sent_ms = self._runtime.now_ms()
        with self._records.mutex:
            flight = record.next_flight()
            request = m.Sync(record.open, flight, record.restored())
            asked, record.outdated = record.outdated, set()
        sync = Synchronisation(self._records, record, flight, sent_ms, renewal_ms, asked)
        requests = [request if node in asked else None for node in range(self._records.nodes)]
        answers = await self._flights.ask(requests, sync.judge, timeout_ms, sync.late)
        for node, answer in enumerate(answers):
            if isinstance(answer, m.SessionClaims):
                sync.late(node, answer)

    def _conclude(self, record: SessionRecord, command: c.Renew, renewal_ms: int) -> c.Renewed:
        """Extend the session from `renewal_ms`. Raises unless every claim is confirmed or lost.

        A lost claim stays at the nodes until its client has been told and sends `Leave`: nobody
        else may get the lock while the client still relies on it.
        """
        give_up_ms = self._runtime.now_ms() - GIVE_UP_SHARE * record.open.ttl_ms
        lost: list[Claim] = []
        uncertain: list[Claim] = []
        with self._records.mutex:
            record.forget_below(command.lowest)
            believed = record.believed()
            account = checksum_of((n, claim.take.ballot) for n, claim in believed.items())
            matches = (len(believed), account) == (command.count, command.checksum)
            for claim in believed.values():
                confirmed_ms = record.confirmed_ms(claim, self._majority)
                if claim.phase is Phase.HELD and confirmed_ms >= renewal_ms:
                    continue
                is_lost = claim.phase is Phase.LOST or confirmed_ms < max(0, give_up_ms)
                (lost if is_lost else uncertain).append(claim)
            # A claim that was granted while the keep-alive was in flight is missing in the
            # client's account, so the client would not notice that it is lost.
            if not uncertain and (matches or not lost):
                for claim in lost:
                    claim.phase = Phase.LOST
                record.renewed_ms = max(record.renewed_ms, renewal_ms)
                return c.Renewed(matches and not lost)
        raise OutcomeUnknownError(
            self._label,
            f"{len(lost) + len(uncertain)} claims of the session were not confirmed by "
            f"{self._majority} of {self._records.nodes} nodes",
        )

    async def _close(self, command: c.Close, timeout_ms: int) -> c.Reply:
        return await self._end(m.End(command.session, CLOSED), timeout_ms)

    async def _expel(self, command: c.Expel, timeout_ms: int) -> c.Reply:
        request = m.End(command.session, command.reason, command.renewals)
        return await self._end(request, timeout_ms)

    async def _end(self, request: m.End, timeout_ms: int) -> c.Reply:
        answers = await self._ask_all(request, timeout_ms, everybody=True)
        found = sum(isinstance(answer, m.Given) and answer.found for answer in answers)
        record = self._records.sessions.get(request.session)
        if record is not None and found:
            record.ended = record.ended or c.Ended(request.reason)
        return c.Done(found=found >= self._majority)

    # ── actor and value of a claim ─────────────────────────────────────────────────────

    async def _proclaim(self, command: c.Proclaim, timeout_ms: int) -> c.Reply:
        size = len(command.value.encode())
        if size > LIMITS.text_max:
            return c.Refused(c.WHY_TOO_LARGE, "value", size, LIMITS.text_max)
        return await self._describe(command.session, command.n, "value", command.value, timeout_ms)

    async def _adopt(self, command: c.Adopt, timeout_ms: int) -> c.Reply:
        return await self._describe(command.session, command.n, "actor", command.actor, timeout_ms)

    async def _describe(
        self, session: str, n: int, what: str, text: str, timeout_ms: int
    ) -> c.Reply:
        record = self._record(session)
        if isinstance(record, c.Ended):
            return record
        claim = record.claims.get(n)
        if claim is None or claim.phase is not Phase.HELD:
            return c.Gone(NOT_HELD)
        take = claim.take
        claim.take = take._replace(value=text) if what == "value" else take._replace(actor=text)
        answers = await self._ask_all(
            m.Describe(session, n, take.kind, take.name, take.ballot, what, text),
            timeout_ms,
            everybody=True,
        )
        found = sum(isinstance(answer, m.Given) and answer.found for answer in answers)
        if found >= self._majority:
            return c.Done()
        return self._ended(answers) or c.Gone("a majority of the nodes has no record of it")

    # ── reading ──────────────────────────────────────────────────────────────────────

    async def _look(self, command: c.Look, timeout_ms: int) -> c.Reply:
        reply = await self._claims(c.Claims(command.session), timeout_ms)
        if not isinstance(reply, c.ClaimsReply):
            return reply
        for view in reply.claims:
            if view.n == command.n and view.state == c.HOLDING:
                return c.Granted(view.token, view.for_ms, view.places[0].mode)
        return c.Gone("a majority of the nodes has no record of it")

    async def _claims(self, command: c.Claims, timeout_ms: int) -> c.Reply:
        record = self._record(command.session)
        if isinstance(record, c.Ended):
            return record
        answers = await self._ask_all(m.ReadClaims(command.session), timeout_ms, everybody=True)
        ended = self._ended(answers)
        if ended is not None:
            record.ended = ended
            return ended
        with self._records.mutex:
            believed = record.believed()
        return c.ClaimsReply(views.claims_of(command.session, answers, believed))

    async def _inspect(self, command: c.Inspect, timeout_ms: int) -> c.Reply:
        request = m.ReadLocks(command.kind, command.name)
        answers = await self._ask_all(request, timeout_ms, everybody=True)
        return views.resource(command.kind, command.name, answers)

    async def _listing(self, command: c.Listing, timeout_ms: int) -> c.Reply:
        request = m.ReadLocks(command.kind, command.prefix, command.after, command.limit)
        answers = await self._ask_all(request, timeout_ms, everybody=True)
        return views.listing(command.kind, answers, command.limit)

    async def _sessions(self, command: c.Sessions, timeout_ms: int) -> c.Reply:
        request = m.ReadSessions(command.after, command.limit)
        answers = await self._ask_all(request, timeout_ms, everybody=True)
        return views.sessions(answers, command.limit)


# ── the three flights that change the records ─────────────────────────────────


@dataclass(slots=True)
class Proposal:
    """The flight that proposes a ballot to all nodes."""

    records: SessionRecords
    record: SessionRecord
    flight: int
    n: int
    claim: Claim

    def requests(self) -> list[m.Request]:
        take, nodes, covered = self.claim.take, self.records.nodes, self.record.covered
        if len(covered) == nodes:
            return [take] * nodes
        opening = take._replace(open=self.record.open)
        return [take if node in covered else opening for node in range(nodes)]

    def judge(self, answers: Answers) -> Progress:
        majority, nodes = self.records.majority, self.records.nodes
        yes = sum(isinstance(a, m.Taken) and a.status == m.OK for a in answers)
        if yes >= majority:
            return Progress.DONE
        undecided, answered = answers.count(None), count_answers(answers)
        # It has lost only once a majority refused it or is unreachable.
        if yes + undecided < majority and (
            answered >= majority or nodes - undecided - answered > nodes - majority
        ):
            return Progress.DONE
        return Progress.SOON if answered >= majority else Progress.WAIT

    def note(self, answers: Answers) -> None:
        taken = [answer for answer in answers if isinstance(answer, m.Taken)]
        for node, answer in enumerate(answers):
            if isinstance(answer, m.Taken):
                self.late(node, answer)
        majority = self.records.majority
        if len(taken) >= majority:
            # The next ballot must be above the highest of a majority; a few nodes may be far ahead.
            highest = sorted(answer.highest for answer in taken)[majority - 1]
            self.records.heard(highest)
            walls = sorted(a.wall_us for a in taken if a.status in (m.AHEAD, m.BEHIND))
            if len(walls) >= majority:
                self.records.correct(walls[len(walls) // 2], highest)

    def late(self, node: int, answer: m.Answer) -> None:
        """Record one node's answer, in time or late."""
        if not isinstance(answer, m.Taken):
            return
        with self.records.mutex:
            if answer.status in (m.UNKNOWN, m.ENDED):
                self.record.lose_node(node)
            elif answer.status == m.OK and self.record.claims.get(self.n) is self.claim:
                self.record.cover(node, self.claim.sent_ms)
                self.claim.accepted(node, self.flight)


class Renewal:
    """The flight that sends a keep-alive to all nodes."""

    def __init__(self, records: SessionRecords, record: SessionRecord, sent_ms: int) -> None:
        self.records = records
        self.record = record
        self.sent_ms = sent_ms
        with records.mutex:
            self._expected = [record.account_at(node) for node in range(records.nodes)]
            self._at = [set(c.at) for c in record.claims.values() if c.phase is Phase.HELD]

    def _agrees(self, node: int, answer: m.Answer | m.NoAnswer | None) -> bool:
        return (
            isinstance(answer, m.Kept)
            and answer.status == m.OK
            and (answer.count, answer.checksum) == self._expected[node]
        )

    def judge(self, answers: Answers) -> Progress:
        majority = self.records.majority
        agreed = {node for node, answer in enumerate(answers) if self._agrees(node, answer)}
        if len(agreed) >= majority and all(len(at & agreed) >= majority for at in self._at):
            return Progress.DONE
        if None not in answers:
            return Progress.DONE
        return Progress.SOON if count_answers(answers) >= majority else Progress.WAIT

    def late(self, node: int, answer: m.Answer) -> None:
        """Record one node's answer, in time or late."""
        if not isinstance(answer, m.Kept):
            return
        with self.records.mutex:
            if answer.status != m.OK:
                self.record.lose_node(node)
                self.record.outdated.add(node)
            elif self._agrees(node, answer):
                self.record.cover(node, self.sent_ms)
                if any(node not in at for at in self._at):
                    self.record.outdated.add(node)
            else:
                self.record.outdated.add(node)


@dataclass(slots=True)
class Synchronisation:
    """The flight that updates nodes whose state of the session is out of date."""

    records: SessionRecords
    record: SessionRecord
    flight: int
    sent_ms: int
    renewal_ms: int
    asked: set[int]

    def judge(self, answers: Answers) -> Progress:
        if all(answers[node] is not None for node in self.asked) or self._is_confirmed():
            return Progress.DONE
        return Progress.SOON

    def _is_confirmed(self) -> bool:
        """Return True if a majority has renewed every claim without these nodes."""
        with self.records.mutex:
            return all(
                self.record.confirmed_ms(claim, self.records.majority) >= self.renewal_ms
                for claim in self.record.claims.values()
                if claim.phase is Phase.HELD
            )

    def late(self, node: int, answer: m.Answer) -> None:
        if not isinstance(answer, m.SessionClaims):
            return
        with self.records.mutex:
            if answer.status != m.OK:
                self.record.lose_node(node)
                return
            self.record.cover(node, self.sent_ms)
            there = {(claim.n, claim.ballot) for claim in answer.claims}
            for n, claim in self.record.claims.items():
                if claim.take.flight > self.flight:
                    continue  # proposed since then: its own flight records it
                if (n, claim.take.ballot) in there:
                    claim.accepted(node, self.flight)
                else:
                    claim.lost_by(node, self.record.flight)


# ── small helpers ────────────────────────────────────────────────────────────────────


def count_answers(answers: Answers) -> int:
    return sum(answer is not None and not isinstance(answer, m.NoAnswer) for answer in answers)


def count_opened(answers: Answers) -> int:
    """Return how many nodes have the session that an `Open` names."""
    return sum(isinstance(answer, m.Given) and answer.status == m.OK for answer in answers)


def done_if(condition: bool) -> Progress:
    return Progress.DONE if condition else Progress.WAIT


def _may_have_accepted(answer: m.Answer | m.NoAnswer | None) -> bool:
    if isinstance(answer, m.NoAnswer):
        return answer.maybe
    return answer is None or (isinstance(answer, m.Taken) and answer.status == m.OK)


def _give(claim: Claim, *, close_ms: int = 0, undo: bool = False) -> m.Give:
    take = claim.take
    return m.Give(take.session, take.n, take.kind, take.name, take.ballot, close_ms, undo)


_METHODS: Final = {
    c.Open: QuorumWire._open,
    c.Enter: QuorumWire._enter,
    c.Contend: QuorumWire._contend,
    c.Leave: QuorumWire._leave,
    c.Renew: QuorumWire._renew,
    c.Close: QuorumWire._close,
    c.Expel: QuorumWire._expel,
    c.Proclaim: QuorumWire._proclaim,
    c.Adopt: QuorumWire._adopt,
    c.Look: QuorumWire._look,
    c.Claims: QuorumWire._claims,
    c.Inspect: QuorumWire._inspect,
    c.Listing: QuorumWire._listing,
    c.Sessions: QuorumWire._sessions,
}
