"""The common cases as fixed transactions, sent at once, without a read before them.

    take      if   the session is as known, its resources have no key at all, the epoch is as known
              then put the holder's keys
    join      if   the session is as known, somebody holds the lock, no claim of several places has
                   a reservation there, nobody stands behind our place in line
              then put the waiting key, and read who is ahead
    hand_over if   our key is as written, nothing was written at the resource since, up to the last
                   heir known; the first heir and its session are there, the epoch is as known
              then delete our key, make the heir a holder, leave word for it

Each compares everything it rests on, so what a client remembers need not be true. If it is not,
the transaction reads instead what the command needs, and `steps` goes on from there. `None` means
that the case is not one of these, or that nothing is known.

A claim in line is always right: since somebody holds the lock, whoever removes the last holder
finds our key and sees to it. So a join need not compare more, and any number of them may travel
together. Only exclusive claims join like this; others may be compatible with the holders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, WAITING, WAKE_GRANTED, Event, Wake
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim, rank_of
from lockfast.core.table import why_invalid
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.gateway import Committed, Gateway, Proposal, Slot
from lockfast.stores.etcd.layout import Base, Owner
from lockfast.stores.etcd.order import tail_of
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.requests import Found, Kv, Range, txn
from lockfast.stores.etcd.steps import LIMITS, Context, Joined, Outcome, Step, deliver_all
from lockfast.stores.etcd.view import WINDOW, Instant, Known

Writes: TypeAlias = Callable[[Slot], list[str]]


class Shortcut:
    """One attempt at a fixed transaction, for one session."""

    def __init__(
        self,
        gateway: Gateway,
        context: Context,
        own: OwnSession,
        until_ms: int,
        given: Instant | None,
    ) -> None:
        self._gateway = gateway
        self._keys = gateway.keys
        self._context = context
        self._own = own
        self._until_ms = until_ms
        self._given = given
        wall_us = gateway.network.wall_us()
        self._instant = given or Instant(wall_us // 1000, wall_us)

    # ── entering ─────────────────────────────────────────────────────────────────────

    async def enter(self, command: c.Enter) -> Outcome | Known | None:
        own, context, places = self._own, self._context, command.places
        if (
            own.record is None or own.ended or context.base is None
            or own.is_used(command.n) or len(own.claims) >= LIMITS.claims_max
            or command.max_hold_ms or command.lock_delay_ms or command.window_ms
            or command.block != 1 or why_invalid(places, LIMITS.places_max)
            or len((command.value or "").encode()) > LIMITS.text_max
        ):  # fmt: skip
            return None
        prefixes = [k.resource_prefix(place.kind, place.name) for place in places]
        waiting = [context.busy[prefix] for prefix in prefixes if prefix in context.busy]
        if not waiting:
            taken = await self._take(command, prefixes)
            if taken is not None:
                return taken
            waiting = [0]
        if (
            command.queue and len(places) == 1 and places[0].mode == EXCLUSIVE
            and waiting[0] < LIMITS.waiting_max
        ):  # fmt: skip
            return await self._join(command, prefixes[0])
        return None

    def _claim(self, command: c.Enter) -> Claim:
        now_ms = self._instant.now_ms
        arrival = self._context.own.next_arrival(self._gateway.cluster.revision)
        return Claim(
            command.session, command.n, command.places, WAITING,
            rank_of(now_ms - command.head_start_ms, arrival),
            command.actor, command.priority, now_ms, value=command.value,
        )  # fmt: skip

    async def _take(self, command: c.Enter, prefixes: list[str]) -> Outcome | Known | None:
        own, keys, base = self._own, self._keys, self._context.base
        record, session = own.record, k.session_key(own.id)
        assert base is not None
        assert record is not None
        claim = self._claim(command)
        own.doubt(claim)
        claim.state, claim.token, claim.granted_ms = HOLDING, k.RELATIVE, claim.entered_ms
        owner = Owner(*record[:5])
        names = [key for _, key in k.keys_of(claim)]
        compares = [
            keys.unchanged(session, own.mod),
            self._same_base(),
            *(keys.absent(prefix, k.end_of(prefix)) for prefix in prefixes),
        ]
        reads: list[Range] = []
        if not command.queue:
            # The answer says who holds it; one that waits goes on by joining the line.
            reads = [Range(k.EPOCH_KEY), Range(session), Range(k.alive_key(own.id))]
            reads += [Range(prefix, k.end_of(prefix), WINDOW) for prefix in prefixes]
        events = self._events("granted", claim, owner, claim.value or "")

        def writes(slot: Slot) -> list[str]:
            value = k.packed_claim(claim, owner, base.epoch, slot.tokens)
            puts = [keys.put(name, value, record.lease) for name in names]
            return [*puts, *self._log(events, slot)]

        scopes = frozenset([session, k.EPOCH_KEY])
        sent = await self._send(compares, writes, reads, frozenset(prefixes), scopes, claim, 1)
        if not isinstance(sent, Committed):
            return sent
        claim.token = sent.token(base.epoch)
        single = len(prefixes) == 1
        own.note(claim, sent.answer.revision, Found([], 0) if single else None)
        reply = c.Granted(claim.token, 0, command.places[0].mode if single else "")
        return Outcome(reply, (), sent.answer.revision)

    async def _join(self, command: c.Enter, prefix: str) -> Outcome | Known | None:
        own, keys = self._own, self._keys
        record, session = own.record, k.session_key(own.id)
        assert record is not None
        claim, owner = self._claim(command), Owner(*record[:5])
        own.doubt(claim)
        key = k.line_key(prefix, "w", claim.rank, claim.session, claim.n)
        put = keys.put(key, k.packed_claim(claim, owner, 0, 0), record.lease)
        holders = Range(prefix, f"{prefix}w", 2)
        before = Range(f"{prefix}w\x1f", key, 1, True)
        window = Range(prefix, k.end_of(prefix), WINDOW)
        compares = [
            keys.unchanged(session, own.mod),
            keys.present(f"{prefix}h\x1f", f"{prefix}h "),
            keys.absent(f"{prefix}v\x1f", f"{prefix}v "),
            keys.absent(key, f"{prefix}w "),
        ]
        events = self._events("waiting", claim, owner)
        ahead = keys.reads([holders, before])

        def writes(slot: Slot) -> list[str]:
            return [put, *ahead, *self._log(events, slot)]

        reads = [Range(k.EPOCH_KEY), Range(session), window, tail_of(prefix)]
        scopes = frozenset([prefix, session, k.EPOCH_KEY])
        sent = await self._send(compares, writes, reads, frozenset([key]), scopes, claim, 0)
        if isinstance(sent, Known) and not sent.found[window].count:
            self._context.busy.pop(prefix, None)
        if not isinstance(sent, Committed):
            return sent
        own.note(claim, 0)
        answer = sent.answer
        reply = self._behind(answer.found(2).kvs or answer.found(1).kvs)
        if reply is not None:
            return Outcome(reply, (), answer.revision)
        step = Step(self._gateway, self._context, Joined(*command[:3]), self._until_ms, self._given)
        try:
            return await step.run()
        except StoreUnavailableError as error:
            # The claim stands in line: the error must not say that nothing was done.
            raise OutcomeUnknownError(error.store, error.what, error.advice) from error

    def _behind(self, ahead: list[Kv]) -> c.Queued | None:
        """The reply to a claim behind one other, waiting or sole holder; None: ask the table."""
        if len(ahead) != 1:
            return None
        key = k.parse_place(ahead[0].key)
        if key.line not in "hw":
            return None
        claim, owner = k.claim_from(key, ahead[0])
        held = claim.state == HOLDING
        if claim.block > 1 or claim.until_ms or claim.wants:
            return None
        since_ms = claim.granted_ms if held else claim.entered_ms
        blocker = c.Blocker(
            claim.session, claim.n, owner.owner, owner.process, 0, held, claim.token,
            self._instant.now_ms - since_ms,
        )  # fmt: skip
        return c.Queued((blocker,), max(1, owner.ttl_ms))

    # ── leaving ──────────────────────────────────────────────────────────────────────

    async def leave(self, command: c.Leave) -> Outcome | Known | None:
        own, base, mine = self._own, self._context.base, self._own.claims.get(command.n)
        if mine is None or mine.heirs is None or own.record is None or own.ended or base is None:
            return None
        claim, heirs, heir = mine.claim, mine.heirs.kvs, _first_heir(mine.heirs)
        if (
            command.close_ms or claim.state != HOLDING or claim.until_ms or claim.lock_delay_ms
            or claim.block > 1 or (heir is None and mine.heirs.count)
        ):  # fmt: skip
            return None
        keys, place = self._keys, claim.places[0]
        prefix = k.resource_prefix(place.kind, place.name)
        key = k.holder_key(prefix, place.mode, claim.rank, own.id, claim.n)
        end = f"{heirs[-1].key}\x00" if heirs else k.end_of(prefix)
        compares = [
            keys.unchanged(key, mine.mod),
            keys.nothing_since(f"{prefix}c", end, mine.mod),
        ]
        deletes, written, compared = [key], {prefix}, {k.EPOCH_KEY}
        if mine.has_word:
            deletes.append(k.word_key(own.id, claim.n))
            written.add(deletes[-1])
        events = self._events("released", claim, Owner(*own.record[:5]))
        grant: Writes = lambda slot: []  # noqa: E731
        if heir is not None:
            heir.claim.granted_ms = self._instant.now_ms
            session = k.session_key(heir.claim.session)
            compares += [
                keys.unchanged(heir.key, heir.mod), keys.present(session), self._same_base()
            ]  # fmt: skip
            deletes.append(heir.key)
            compared.add(session)
            written.add(k.word_key(heir.claim.session, heir.claim.n))
            events += self._events("granted", heir.claim, heir.owner, heir.claim.value or "")
            grant = self._grant(heir, prefix, base)
        deletions = [keys.delete(one) for one in deletes]

        def writes(slot: Slot) -> list[str]:
            return [*deletions, *grant(slot), *self._log(events, slot)]

        window = Range(prefix, k.end_of(prefix), WINDOW)
        reads = [Range(k.EPOCH_KEY), Range(k.session_key(own.id)), Range(key), window]
        scopes = frozenset(written), frozenset(compared)
        sent = await self._send(compares, writes, reads, *scopes, None, int(heir is not None))
        if not isinstance(sent, Committed):
            return sent
        own.saw(command.n)
        own.left(command.n)
        wakes = self._granted(heir, base, sent) if heir is not None else []
        return Outcome(c.Done(), wakes, sent.answer.revision)

    def _grant(self, heir: _Heir, prefix: str, base: Base) -> Writes:
        """Make the heir a holder; if its session is not ours, leave word of it."""
        keys, (_, _, claim, owner, behind) = self._keys, heir
        key = k.holder_key(prefix, EXCLUSIVE, claim.rank, claim.session, claim.n)
        theirs = self._context.own.get(claim.session)
        hears = theirs is not None and theirs.deliver is not None

        def writes(slot: Slot) -> list[str]:
            value = k.packed_claim(claim, owner, base.epoch, slot.tokens)
            puts = [keys.put(key, value, owner.lease)]
            if not hears:
                told = None if behind is None else [list(kv[:3]) for kv in behind.kvs]
                word = k.Word([WAKE_GRANTED], base.epoch + slot.tokens, heirs=told)
                name = k.word_key(claim.session, claim.n)
                puts.append(keys.put(name, k.encode(list(word)), owner.lease))
            return puts

        return writes

    def _granted(self, heir: _Heir, base: Base, sent: Committed) -> list[Wake]:
        claim = heir.claim
        claim.token = sent.token(base.epoch)
        theirs = self._context.own.get(claim.session)
        if theirs is not None:
            theirs.note(claim, sent.answer.revision, heir.behind)
        wakes = [Wake(heir.owner.inbox, claim.session, claim.n, WAKE_GRANTED, claim.token)]
        deliver_all(self._context.own, wakes)
        return wakes

    # ── the transaction ──────────────────────────────────────────────────────────────

    async def _send(
        self,
        compares: list[str],
        writes: Writes,
        reads: list[Range],
        written: frozenset[str],
        compared: frozenset[str],
        entered: Claim | None,
        tokens: int,
    ) -> Committed | Known | None:
        """Send it; if a comparison failed, return what it has read instead."""
        own, failure = self._own, self._keys.reads(reads)

        def body(slot: Slot) -> str:
            return txn(writes(slot), compares, failure)

        size = max(len(compares), len(failure), len(written) + 4)
        committed = None
        try:
            proposal = Proposal(body, size, written, tokens, compared)
            committed = await self._gateway.txn(proposal, self._until_ms)
        except LeaseGoneError:
            pass
        except StoreUnavailableError:
            if entered is not None:
                own.undoubt(entered.n)
            raise
        if committed is not None and committed.answer.succeeded:
            if entered is not None:
                own.saw(entered.n)
            return committed
        if entered is not None:
            own.undoubt(entered.n)
        if committed is None or not reads:
            return None
        known = Known(committed.answer.revision)
        for index, one in enumerate(reads):
            known.learn(one, committed.answer.found(index))
        return known

    def _same_base(self) -> str:
        return self._keys.same(k.EPOCH_KEY, self._context.base_kv)

    def _events(self, what: str, claim: Claim, owner: Owner, detail: str = "") -> list[Event]:
        base, wall_ms = self._context.base, self._instant.wall_us // 1000
        if base is None or base.log_until_ms <= wall_ms:
            return []
        return [
            Event(
                0, wall_ms, what, place.kind, place.name, place.mode, claim.session, claim.n,
                owner.owner, claim.token, detail,
            )
            for place in claim.places
        ]  # fmt: skip

    def _log(self, events: list[Event], slot: Slot) -> list[str]:
        base = self._context.base
        if not events or base is None:
            return []
        packed = [k.packed_event(event, base.epoch, slot.tokens) for event in events]
        return [self._keys.put(f"l\x1f{slot.order:02}", k.encode(packed))]


class _Heir(NamedTuple):
    """Who is served next."""

    key: str
    mod: int
    claim: Claim
    owner: Owner
    behind: Found | None
    """Who is served after that, if it is known."""


def _first_heir(heirs: Found) -> _Heir | None:
    """The first heir, if granting it is all there is to do."""
    if not heirs.kvs:
        return None
    kv, *behind = heirs.kvs
    claim, owner = k.claim_from(k.parse_place(kv.key), kv)
    if (
        len(claim.places) > 1 or claim.places[0].mode != EXCLUSIVE or claim.block > 1
        or claim.max_hold_ms or claim.window_ms or claim.lock_delay_ms
    ):  # fmt: skip
        return None
    claim.state, claim.token = HOLDING, k.RELATIVE
    return _Heir(kv.key, kv.mod, claim, owner, Found(behind, len(behind) + 1) if behind else None)
