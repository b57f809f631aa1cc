"""The common cases as fixed transactions, sent without reading first.

    take   if   the session is as known, its resources are free, the epoch is as known
           then put the holder's keys
    join   if   the session is as known, the lock has a holder, no claim on several places has a
                reservation there, no claim is behind ours in the queue
           then put the waiting key, delete starts behind it, and read the claims ahead; if ours is
                the first in the queue of a sole holder, which is then compared too, write a `Word`
                for it
    leave  if   our key is as written, nothing was written at the resource since, up to the last
                known heir; the first heir and its session exist, the epoch is as known
           then delete our key, make the heir a holder, write a `Word` for it; sometimes, mark its
                rank as the start of the queue

Each compares everything it relies on, so a client's memory may be out of date. In that case the
transaction reads what the command needs instead, and `steps` continues from there.

A claim in the queue is always correct: since the lock has a holder, the client that removes the
last holder finds our key and grants it. So a join need not compare more, and any number of joins
may share a request. Only exclusive claims join like this; others may be compatible with the
holders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, WAITING, WAKE_GRANTED, Event, Wake
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim, entered_of, rank_of
from lockfast.core.table import why_invalid
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.derived.steps import LIMITS, Outcome
from lockfast.stores.derived.stored import RELATIVE, encode
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.batches import Committed, Proposal, Slot
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.layout import KnownBase, Owner, Record
from lockfast.stores.etcd.owned import OwnClaim, OwnSession
from lockfast.stores.etcd.requests import Found, Known, Kv, Range, txn
from lockfast.stores.etcd.steps import Joined, Step
from lockfast.stores.etcd.view import others_of, queue_of

LONG: Final = 100
"""In a queue that is believed to be longer, a joining claim reads only those that entered within
NEAR_MS before it; if there are none, the general path finds the claim ahead."""
NEAR_MS: Final = 100

Attempt: TypeAlias = Outcome | Known | None
"""The outcome; the ranges read, if a comparison failed; None if nothing was read."""


async def enter(execution: Execution, command: c.Enter) -> Attempt:
    """Take a free lock, or join the queue of a lock that is held."""
    own, context, places = execution.own.get(command.session), execution.context, command.places
    if own is None or own.record is None or own.ended or context.base is None:
        return None
    if (
        command.max_hold_ms or command.lock_delay_ms or command.window_ms or command.block != 1
        or own.is_used(command.n) or len(own.claims) >= LIMITS.claims_max
        or why_invalid(places, LIMITS.places_max)
        or (command.value is not None and len(command.value.encode()) > LIMITS.text_max)
    ):  # fmt: skip
        return None
    entry = _Entry(execution, own, own.record, context.base)
    prefixes = [k.resource_prefix(place.kind, place.name) for place in places]
    async with execution.in_turn(prefixes[0]):
        return await entry.take_or_join(command, prefixes)


async def leave(execution: Execution, command: c.Leave) -> Attempt:
    """Release a lock, and hand it over to the next claim if that is known."""
    own, base = execution.own.get(command.session), execution.context.base
    if own is None or own.record is None or own.ended or base is None or command.close_ms:
        return None
    mine = own.claims.get(command.n)
    if mine is None or mine.heirs is None:
        return None
    claim, heir = mine.claim, _first_heir(mine.heirs, execution.instant.now_ms)
    if (
        claim.state != HOLDING or claim.until_ms or claim.lock_delay_ms or claim.block > 1
        or len(claim.places) > 1 or (heir is None and mine.heirs.count)
    ):  # fmt: skip
        return None
    return await _Exit(execution, own, own.record, base).leave(claim, heir)


class _Holder(NamedTuple):
    """The only claim that is stored at a resource, as read at a revision."""

    kv: Kv
    claim: Claim
    owner: Owner
    revision: int


class _Transaction:
    """A fixed transaction for one session."""

    def __init__(
        self, execution: Execution, own: OwnSession, record: Record, base: KnownBase
    ) -> None:
        self._execution = execution
        self._keys = execution.keys
        self._own = own
        self._record = record
        self._base, self._base_kv = base

    async def _send(
        self,
        compares: list[str],
        writes: Callable[[Slot], list[str]],
        reads: list[Range],
        scopes: tuple[Iterable[str], Iterable[str]],
        tokens: int,
    ) -> Committed | Known | None:
        """Send the transaction; if a comparison fails, return the ranges it read instead."""
        execution, failure = self._execution, self._keys.reads(reads)
        written, compared = map(frozenset, scopes)
        size = max(len(compares), len(failure), len(written) + 6)
        proposal = Proposal(
            lambda slot: txn(writes(slot), compares, failure), size, written, tokens, compared
        )
        try:
            committed = await execution.gateway.txn(proposal, execution.until_ms)
        except LeaseGoneError:
            return None
        if committed.answer.succeeded:
            return committed
        known = Known()
        known.learn(reads, committed.answer)
        return known if reads else None

    def _window(self, prefix: str) -> list[Range]:
        """Return what to read of a resource: everything but its queue, and the queue's head."""
        start = self._execution.start_of(prefix)
        return [others_of(prefix, start), queue_of(prefix, start)]

    def _same_base(self) -> str:
        return self._keys.same(k.EPOCH_KEY, self._base_kv)

    def _events(self, what: str, claim: Claim, owner: Owner) -> list[Event]:
        """Return the events to log for a claim; none unless the log has a reader."""
        wall_ms = self._execution.instant.wall_us // 1000
        if self._base.log_until_ms <= wall_ms:
            return []
        detail = claim.value or "" if what == "granted" else ""
        return [
            Event(
                0, wall_ms, what, place.kind, place.name, place.mode, claim.session, claim.n,
                owner.owner, claim.token, detail,
            )
            for place in claim.places
        ]  # fmt: skip

    def _log(self, events: list[Event], slot: Slot) -> list[str]:
        if not events:
            return []
        packed = k.packed_events(events, self._base.epoch, slot.tokens)
        return [self._keys.put(k.log_key(slot.order), packed)]


class _Entry(_Transaction):
    """The transactions of an enter."""

    def _claim(self, command: c.Enter) -> Claim:
        execution, now_ms = self._execution, self._execution.instant.now_ms
        arrival = execution.own.next_arrival(execution.gateway.cluster.revision)
        return Claim(
            command.session, command.n, command.places, WAITING,
            rank_of(now_ms - command.head_start_ms, arrival),
            command.actor, command.priority, now_ms, value=command.value,
        )  # fmt: skip

    async def _enter(
        self,
        claim: Claim,
        compares: list[str],
        writes: Callable[[Slot], list[str]],
        reads: list[Range],
        scopes: tuple[Iterable[str], Iterable[str]],
        tokens: int = 0,
    ) -> Committed | Known | None:
        """Send an enter; the claim is in doubt until the reply arrives."""
        doubted = self._own.doubt(claim.n, OwnClaim.entering(claim, self._own.slot_of(claim.n)))
        if doubted is None:
            return None  # it has been released: the general path refuses it
        try:
            sent = await self._send(compares, writes, reads, scopes, tokens)
        except StoreUnavailableError:
            self._own.undoubt(claim.n, doubted)
            raise
        if isinstance(sent, Committed):
            self._own.saw(claim.n)
        else:
            self._own.undoubt(claim.n, doubted)
        return sent

    async def take_or_join(self, command: c.Enter, prefixes: list[str]) -> Attempt:
        context, places = self._execution.context, command.places
        waiting = [context.busy[prefix] for prefix in prefixes if prefix in context.busy]
        can_join = command.queue and len(places) == 1 and places[0].mode == EXCLUSIVE
        seen: Known | None = None
        if not waiting:
            taken = await self.take(command, prefixes)
            if isinstance(taken, Known) and self.is_free(taken, prefixes):
                taken = await self.take(command, prefixes)
            if not isinstance(taken, Known) or not command.queue:
                return taken
            seen = taken
        if not can_join or sum(waiting) >= LIMITS.waiting_max:
            return None
        if seen is not None and (holder := self.sole_holder(seen, prefixes[0])) is not None:
            joined = await self.join(command, prefixes[0], 0, holder)
            if isinstance(joined, Outcome):
                return joined
        return await self.join(command, prefixes[0], sum(waiting))

    async def take(self, command: c.Enter, prefixes: list[str]) -> Attempt:
        own, keys, base = self._own, self._keys, self._base
        session, lease, owner = k.session_key(own.id), self._record.lease, self._record.owned
        claim = self._claim(command)
        claim.state, claim.token, claim.granted_ms = HOLDING, RELATIVE, claim.entered_ms
        slot = own.slot_of(claim.n)
        names = [key for _, key in k.keys_of(claim, slot)]
        compares = [keys.unchanged(session, own.mod), self._same_base()]
        for prefix in prefixes:
            compares += k.nothing_stored(keys, prefix, self._execution.start_of(prefix))
        events = self._events("granted", claim, owner)

        def writes(slot: Slot) -> list[str]:
            value = k.packed_claim(claim, owner, base.epoch, slot.tokens)
            return [*(keys.put(name, value, lease) for name in names), *self._log(events, slot)]

        reads = [one for prefix in prefixes for one in self._window(prefix)]
        if not command.queue:
            # The general path continues from here; a claim that may wait joins the queue instead.
            reads += [Range(k.EPOCH_KEY), Range(session), Range(k.alive_key(own.id))]
        scopes = prefixes, [session, k.EPOCH_KEY]
        for prefix in prefixes:
            self._execution.context.met(prefix, 0)  # so that our other callers join the queue
        sent = await self._enter(claim, compares, writes, reads, scopes, 1)
        if not isinstance(sent, Committed):
            return sent
        claim.token = sent.token(base.epoch)
        single = len(names) == 1
        own.note(claim, slot, sent.answer.revision, Found([], 0) if single else None)
        mode = command.places[0].mode if single else ""
        return Outcome(c.Granted(claim.token, 0, mode))

    def is_free(self, known: Known, prefixes: list[str]) -> bool:
        """Return whether resources are free and another attempt, with their starts, will succeed.

        The start of a queue may exist after its last claim has left.
        """
        execution, is_new = self._execution, False
        found = {prefix: self.start_if_free(known, prefix) for prefix in prefixes}
        for prefix, start in found.items():
            if start is None:
                return False
            is_new |= execution.start_of(prefix) != start
            execution.starts[prefix] = start
            execution.context.started(prefix, start)
        return is_new

    def start_if_free(self, known: Known, prefix: str) -> str | None:
        """Return the start of the queue of a resource that is free ("": none), else None."""
        others, queue = (known.found[one] for one in self._window(prefix))
        stored = [k.parse_place(kv.key) for kv in others.kvs]
        if queue.count or len(stored) < others.count or any(one.line != "a" for one in stored):
            return None
        return max((one.rank for one in stored), default="")

    def sole_holder(self, known: Known, prefix: str) -> _Holder | None:
        """Return the claim that holds the lock in another process, if no other claim is stored."""
        others, queue = (known.found[one] for one in self._window(prefix))
        kvs = [kv for kv in others.kvs if not kv.key.startswith(f"{prefix}a")]
        if queue.count or len(others.kvs) < others.count or len(kvs) != 1:
            return None
        place = k.parse_place(kvs[0].key)
        if place.line != "h":
            return None
        if self._execution.own.get(place.session) is not None:
            return None
        return _Holder(kvs[0], *k.claim_from(place, kvs[0]), known.revision)

    async def join(
        self, command: c.Enter, prefix: str, waiting: int, holder: _Holder | None = None
    ) -> Attempt:
        """Join a queue of about `waiting` claims; tell a sole holder that ours is the first."""
        own, keys, context = self._own, self._keys, self._execution.context
        session, owner, claim = k.session_key(own.id), self._record.owned, self._claim(command)
        key = k.waiting_key(prefix, claim.rank, claim.session, own.slot_of(claim.n))
        value = k.packed_claim(claim, owner, 0, 0)
        puts = [
            keys.put(key, value, owner.lease),
            keys.delete(*k.starts_from(prefix, claim.rank)),
        ]
        # To read a range in reverse, etcd fetches all of it: in a long queue, read only the claims
        # that entered just before.
        is_long = waiting > LONG
        start = self._execution.start_of(prefix)
        near = rank_of(entered_of(claim.rank) - NEAR_MS, 0) if is_long else ""
        before = Range(k.queue_from(prefix, max(near, start))[0], key, 1, True)
        holders = Range(f"{prefix}c", f"{prefix}w", 2)
        ahead, events = keys.reads([holders, before]), self._events("waiting", claim, owner)
        compares = [
            keys.unchanged(session, own.mod),
            keys.present(f"{prefix}h\x1f", f"{prefix}h "),
            keys.absent(f"{prefix}v\x1f", f"{prefix}v "),
            keys.absent(key, f"{prefix}w "),
        ]

        written, compared = [key], [prefix, session, k.EPOCH_KEY]
        if holder is not None:
            theirs, word = holder.claim, k.Word([k.HEIR], heirs=[[key, value, 0]])
            compared.append(k.session_key(theirs.session))
            written.append(k.word_key(theirs.session, theirs.n))
            compares += [
                keys.unchanged(holder.kv.key, holder.kv.mod),
                *k.nothing_new(keys, prefix, start, k.end_of(prefix), holder.revision),
                keys.present(compared[-1]),
            ]
            puts.append(keys.put(written[-1], k.packed_word(word, 0, 0), holder.owner.lease))

        def writes(slot: Slot) -> list[str]:
            return [*ahead, *puts, *self._log(events, slot)]

        reads = [Range(k.EPOCH_KEY), Range(session), *self._window(prefix)]
        scopes = written, compared
        sent = await self._enter(claim, compares, writes, reads, scopes)
        if isinstance(sent, Known) and self.start_if_free(sent, prefix) is not None:
            context.busy.pop(prefix, None)
        if not isinstance(sent, Committed):
            return sent
        # The claim may have been granted since, as our listener knows: do not overwrite its note.
        answer = sent.answer
        found = answer.found(1)
        context.met(prefix, (waiting if is_long else found.count) + 1)
        reply = self._behind(found.kvs or ([] if is_long else answer.found(0).kvs))
        if reply is not None:
            return Outcome(reply)
        try:
            return await Step(self._execution, Joined(*command[:3])).run()
        except StoreUnavailableError as error:
            # The claim is in the queue: the error must not say that nothing was executed.
            raise OutcomeUnknownError(error.store, error.what, error.advice) from error

    def _behind(self, ahead: list[Kv]) -> c.Queued | None:
        """Return the reply for a claim with a single claim ahead; None if the table must decide."""
        if len(ahead) != 1 or k.parse_place(ahead[0].key).line not in "hw":
            return None
        claim, owner = k.claim_from(k.parse_place(ahead[0].key), ahead[0])
        if claim.block > 1 or claim.until_ms or claim.wants:
            return None
        held = claim.state == HOLDING
        for_ms = self._execution.instant.now_ms - (claim.granted_ms if held else claim.entered_ms)
        blocker = c.Blocker(
            claim.session, claim.n, owner.owner, owner.process, 0, held, claim.token, for_ms
        )
        return c.Queued((blocker,), max(1, owner.ttl_ms))


class _Heir(NamedTuple):
    """The next claim in the queue."""

    key: str
    slot: str
    mod: int
    claim: Claim
    """Its state after the grant."""
    owner: Owner
    behind: Found | None
    """The claims after it, if known."""


def _first_heir(heirs: Found, now_ms: int) -> _Heir | None:
    """Return the first heir, if granting it is the only change needed."""
    if not heirs.kvs:
        return None
    kv, *behind = heirs.kvs
    place = k.parse_place(kv.key)
    claim, owner = k.claim_from(place, kv)
    if (
        len(claim.places) > 1 or claim.places[0].mode != EXCLUSIVE or claim.block > 1
        or claim.max_hold_ms or claim.window_ms or claim.lock_delay_ms
    ):  # fmt: skip
        return None
    claim.state, claim.token, claim.granted_ms = HOLDING, RELATIVE, now_ms
    known = Found(behind, len(behind) + 1) if behind else None
    return _Heir(kv.key, place.slot, kv.mod, claim, owner, known)


class _Exit(_Transaction):
    """The transaction of a release."""

    async def leave(self, claim: Claim, heir: _Heir | None) -> Attempt:
        own, keys, mine, place = self._own, self._keys, self._own.claims[claim.n], claim.places[0]
        prefix = k.resource_prefix(place.kind, place.name)
        key = k.holder_key(prefix, place.mode, own.id, mine.slot)
        heirs = mine.heirs.kvs if mine.heirs is not None else []
        end = f"{heirs[-1].key}\x00" if heirs else k.end_of(prefix)
        start, mark = self._execution.start_of(prefix), ""
        compares = [
            keys.unchanged(key, mine.mod),
            *k.nothing_new(keys, prefix, start, end, mine.heirs_mod),
        ]
        changes, written, compared = [keys.delete(key)], [prefix], [k.EPOCH_KEY]
        events = self._events("released", claim, self._record.owned)
        if mine.has_word:
            written.append(k.word_key(own.id, claim.n))
            changes.append(keys.delete(written[-1]))
        if heir is not None:
            theirs = k.session_key(heir.claim.session)
            compares += [keys.unchanged(heir.key, heir.mod), keys.present(theirs)]
            compares.append(self._same_base())
            changes.append(keys.delete(heir.key))
            if heir.claim.rank > start and self._execution.context.marks_start():
                mark = heir.claim.rank
                changes.append(keys.delete(*(k.start_key(prefix, one) for one in (start, mark))))
                changes.append(keys.put(k.start_key(prefix, mark), "", heir.owner.lease))
            written.append(k.word_key(heir.claim.session, heir.claim.n))
            compared.append(theirs)
            events += self._events("granted", heir.claim, heir.owner)

        def writes(slot: Slot) -> list[str]:
            grant = self._grant(heir, prefix, slot) if heir is not None else []
            return [*changes, *grant, *self._log(events, slot)]

        tokens = 0 if heir is None else 1
        reads = self._window(prefix)
        sent = await self._send(compares, writes, reads, (written, compared), tokens)
        if isinstance(sent, Known):
            return self._assumed(sent) if sent.get(key) is not None else None
        if sent is None:
            return None
        own.saw(claim.n)
        own.left(claim.n)
        if heir is None:
            self._execution.context.busy.pop(prefix, None)
        if mark:
            self._execution.context.started(prefix, mark)
        wakes = self._granted(heir, sent) if heir is not None else []
        return Outcome(c.Done(), wakes)

    def _assumed(self, known: Known) -> Known:
        """Add our session and the epoch from memory; the step compares what it uses."""
        session = k.session_key(self._own.id)
        record = encode(list(self._record))
        known.kvs[session] = Kv(session, record, self._own.mod, self._record.lease)
        known.kvs[k.EPOCH_KEY] = self._base_kv
        return known

    def _grant(self, heir: _Heir, prefix: str, slot: Slot) -> list[str]:
        """Return the writes that grant the heir, with a word for it if its session is not ours."""
        keys, epoch, (_, slot_name, _, claim, owner, behind) = self._keys, self._base.epoch, heir
        key = k.holder_key(prefix, EXCLUSIVE, claim.session, slot_name)
        value = k.packed_claim(claim, owner, epoch, slot.tokens)
        puts = [keys.put(key, value, owner.lease)]
        theirs = self._execution.own.get(claim.session)
        if theirs is None or theirs.deliver is None:
            word = k.Word([WAKE_GRANTED], RELATIVE, heirs=k.told_heirs(behind))
            said = k.packed_word(word, epoch, slot.tokens)
            puts.append(keys.put(k.word_key(claim.session, claim.n), said, owner.lease))
        return puts

    def _granted(self, heir: _Heir, sent: Committed) -> list[Wake]:
        claim, context = heir.claim, self._execution.context
        claim.token = sent.token(self._base.epoch)
        theirs = context.own.get(claim.session)
        if theirs is not None:
            theirs.note(claim, heir.slot, sent.answer.revision, heir.behind)
        wakes = [Wake(heir.owner.inbox, claim.session, claim.n, WAKE_GRANTED, claim.token)]
        context.own.deliver(wakes)
        return wakes
