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

Attempt: TypeAlias = Outcome | Known | Joined | None
"""The outcome; the ranges read, if a comparison failed; a claim that has joined the queue, if the
table must say what is ahead of it; None if nothing was read."""


async def enter(execution: Execution, command: c.Enter) -> Outcome | Known | None:
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
    shortcut = _Shortcut(execution, own, own.record, context.base)
    prefixes = [k.resource_prefix(place.kind, place.name) for place in places]
    async with execution.in_turn(prefixes[0]):
        done = await shortcut.take_or_join(command, prefixes)
    if not isinstance(done, Joined):
        return done
    try:
        return await Step(execution, done).run()
    except StoreUnavailableError as error:
        # The claim is in the queue: the error must not say that nothing was executed.
        raise OutcomeUnknownError(error.store, error.what, error.advice) from error


async def leave(execution: Execution, command: c.Leave) -> Outcome | Known | None:
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
    return await _Shortcut(execution, own, own.record, base).leave(mine, mine.heirs.kvs, heir)


class _Heir(NamedTuple):
    """The next claim in the queue."""

    kv: Kv
    owner: Owner
    granted: OwnClaim
    """Its state after the grant, with the claims behind it, if known."""


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
    return _Heir(kv, owner, OwnClaim(claim, place.slot, heirs=known))


class _Shortcut:
    """The fixed transactions of one session."""

    def __init__(
        self, execution: Execution, own: OwnSession, record: Record, base: KnownBase
    ) -> None:
        self._execution = execution
        self._context = execution.context
        self._keys = execution.keys
        self._own = own
        self._session = k.session_key(own.id)
        self._record = record
        self._owner = record.owned
        self._base, self._base_kv = base

    def _proposal(
        self,
        compares: list[str],
        writes: Callable[[Slot], list[str]],
        events: list[Event],
        reads: list[Range],
        written: Iterable[str],
        compared: Iterable[str],
        tokens: int = 0,
    ) -> Proposal:
        """Return a transaction, with the scopes that it writes and compares."""
        failure, keys, epoch = self._keys.reads(reads), self._keys, self._base.epoch
        scopes = frozenset(written), frozenset({*compared, k.EPOCH_KEY})

        def body(slot: Slot) -> str:
            operations = writes(slot)
            if events:
                packed = k.packed_events(events, epoch, slot.tokens)
                operations.append(keys.put(k.log_key(slot.order), packed))
            return txn(operations, compares, failure)

        size = max(len(compares), len(failure), len(scopes[0]) + 6)
        return Proposal(body, size, scopes[0], tokens, scopes[1])

    def _window(self, prefix: str) -> list[Range]:
        """Return what to read of a resource: everything but its queue, and the queue's head."""
        start = self._execution.start_of(prefix)
        return [others_of(prefix, start), queue_of(prefix, start)]

    def _same_session(self) -> str:
        return self._keys.unchanged(self._session, self._own.mod)

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

    # ── entering ─────────────────────────────────────────────────────────────────────

    async def take_or_join(self, command: c.Enter, prefixes: list[str]) -> Attempt:
        prefix, busy = prefixes[0], self._context.busy
        seen: Known | None = None
        waiting = [busy[each] for each in prefixes if each in busy]
        if not waiting:
            taken = await self._take(command, prefixes)
            if not isinstance(taken, Known) or not command.queue:
                return taken
            seen = self._assumed(taken)
        can_join = command.queue and len(prefixes) == 1 and command.places[0].mode == EXCLUSIVE
        if not can_join or sum(waiting) >= LIMITS.waiting_max:
            return seen
        if seen is not None:
            stored = self._stored(seen, prefix)
            if stored == []:
                return None  # it is free, but the epoch or the start of its queue is another
            if stored and self._is_holder_elsewhere(stored):
                joined = await self._join(command, prefix, 0, stored[0], seen.revision)
                if isinstance(joined, Outcome | Joined):
                    return joined
        return await self._join(command, prefix, sum(waiting))

    def _claim(self, command: c.Enter) -> Claim:
        execution, now_ms = self._execution, self._execution.instant.now_ms
        arrival = execution.own.next_arrival(self._context.revision)
        return Claim(
            command.session, command.n, command.places, WAITING,
            rank_of(now_ms - command.head_start_ms, arrival),
            command.actor, command.priority, now_ms, value=command.value,
        )  # fmt: skip

    async def _take(self, command: c.Enter, prefixes: list[str]) -> Outcome | Known | None:
        execution, own, keys, owner = self._execution, self._own, self._keys, self._owner
        claim, name, epoch = self._claim(command), own.slot_of(command.n), self._base.epoch
        claim.state, claim.token, claim.granted_ms = HOLDING, RELATIVE, claim.entered_ms
        names = [key for _, key in k.keys_of(claim, name)]
        compares = [self._same_session(), self._same_base()]
        for prefix in prefixes:
            compares += k.nothing_stored(keys, prefix, execution.start_of(prefix))
            self._context.met(prefix, 0)  # so that our other callers join the queue

        def writes(slot: Slot) -> list[str]:
            value = k.packed_claim(claim, owner, epoch, slot.tokens)
            return [keys.put(name, value, owner.lease) for name in names]

        reads = [one for prefix in prefixes for one in self._window(prefix)]
        if not command.queue:
            # The general path continues from here; a claim that may wait joins the queue instead.
            reads += [Range(k.EPOCH_KEY), Range(self._session), Range(k.alive_key(own.id))]
        events = self._events("granted", claim, owner)
        proposal = self._proposal(compares, writes, events, reads, prefixes, [self._session], 1)
        sent = await execution.propose_enter(own, claim, proposal, reads)
        if not isinstance(sent, Committed):
            return sent
        claim.token = sent.token(epoch)
        single = len(names) == 1
        own.note(claim, name, sent.answer.revision, Found([], 0) if single else None)
        return Outcome(c.Granted(claim.token, 0, claim.places[0].mode if single else ""))

    def _stored(self, known: Known, prefix: str) -> list[Kv] | None:
        """Return what is stored at a resource without a queue, except starts, if all was read."""
        others, queue = (known.found[one] for one in self._window(prefix))
        if queue.count or len(others.kvs) < others.count:
            return None
        return [kv for kv in others.kvs if not kv.key.startswith(f"{prefix}a")]

    def _is_holder_elsewhere(self, stored: list[Kv]) -> bool:
        """Return whether a claim of another process is all that is stored at a resource."""
        place = k.parse_place(stored[0].key)
        is_ours = self._execution.own.get(place.session) is not None
        return len(stored) == 1 and place.line == "h" and not is_ours

    async def _join(
        self,
        command: c.Enter,
        prefix: str,
        waiting: int,
        holder: Kv | None = None,
        revision: int = 0,
    ) -> Attempt:
        """Join a queue of about `waiting` claims.

        Tell a sole `holder`, as read at `revision`, that ours is the first.
        """
        own, keys, claim = self._own, self._keys, self._claim(command)
        start = self._execution.start_of(prefix)
        key = k.place_key(prefix, "w", claim.rank, own.id, own.slot_of(claim.n))
        value = k.packed_claim(claim, self._owner, 0, 0)
        # To read a range in reverse, etcd fetches all of it: in a long queue, read only the claims
        # that entered just before.
        is_long = waiting > LONG
        near = rank_of(entered_of(claim.rank) - NEAR_MS, 0) if is_long else ""
        before = Range(k.queue_from(prefix, max(near, start))[0], key, 1, True)
        operations = [
            *keys.reads([Range(f"{prefix}c", f"{prefix}w", 2), before]),
            keys.put(key, value, self._owner.lease),
            keys.delete(*k.starts_from(prefix, claim.rank)),
        ]
        compares = [
            self._same_session(),
            keys.present(f"{prefix}h\x1f", f"{prefix}h "),
            keys.absent(f"{prefix}v\x1f", f"{prefix}v "),
            keys.absent(key, f"{prefix}w "),
        ]
        written, compared = [key], [prefix, self._session]
        if holder is not None:
            theirs, _ = k.claim_from(k.parse_place(holder.key), holder)
            word = k.word_key(theirs.session, theirs.n)
            said = k.packed_word(k.Word([k.HEIR], heirs=[[key, value, 0]]), 0, 0)
            operations.append(keys.put(word, said, holder.lease))
            written.append(word)
            compared.append(k.session_key(theirs.session))
            compares += [
                keys.unchanged(holder.key, holder.mod),
                *k.nothing_new(keys, prefix, start, k.end_of(prefix), revision),
                keys.present(k.session_key(theirs.session)),
            ]
        reads = [Range(k.EPOCH_KEY), Range(self._session), *self._window(prefix)]
        events = self._events("waiting", claim, self._owner)
        proposal = self._proposal(
            compares, lambda slot: list(operations), events, reads, written, compared
        )
        sent = await self._execution.propose_enter(own, claim, proposal, reads)
        if not isinstance(sent, Committed):
            return sent
        # The claim may have been granted since, as our listener knows: do not overwrite its note.
        holders, ahead = sent.answer.found(0), sent.answer.found(1)
        self._context.met(prefix, (waiting if is_long else ahead.count) + 1)
        reply = self._behind(ahead.kvs or ([] if is_long else holders.kvs))
        return Outcome(reply) if reply is not None else Joined(*command[:3])

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

    # ── leaving ──────────────────────────────────────────────────────────────────────

    async def leave(
        self, mine: OwnClaim, heirs: list[Kv], heir: _Heir | None
    ) -> Outcome | Known | None:
        own, keys, claim = self._own, self._keys, mine.claim
        place, (key,) = claim.places[0], mine.keys()
        prefix = k.resource_prefix(place.kind, place.name)
        end = f"{heirs[-1].key}\x00" if heirs else k.end_of(prefix)
        start, mark = self._execution.start_of(prefix), ""
        compares = [
            keys.unchanged(key, mine.mod),
            *k.nothing_new(keys, prefix, start, end, mine.heirs_mod),
        ]
        changes, written, compared = [keys.delete(key)], [prefix], list[str]()
        events = self._events("released", claim, self._owner)
        if mine.has_word:
            written.append(k.word_key(own.id, claim.n))
            changes.append(keys.delete(written[-1]))
        if heir is not None:
            theirs = heir.granted.claim
            compared.append(k.session_key(theirs.session))
            compares += [
                keys.unchanged(heir.kv.key, heir.kv.mod),
                keys.present(compared[0]),
                self._same_base(),
            ]
            changes.append(keys.delete(heir.kv.key))
            if theirs.rank > start and self._context.marks_start():
                mark = theirs.rank
                marked = k.place_key(prefix, "a", mark)
                changes.append(keys.delete(k.place_key(prefix, "a", start), marked))
                changes.append(keys.put(marked, "", heir.owner.lease))
            written.append(k.word_key(theirs.session, theirs.n))
            events += self._events("granted", theirs, heir.owner)

        def writes(slot: Slot) -> list[str]:
            return [*changes, *(self._grant(heir, slot) if heir is not None else [])]

        reads, tokens = self._window(prefix), int(heir is not None)
        proposal = self._proposal(compares, writes, events, reads, written, compared, tokens)
        sent = await self._execution.propose(proposal, reads)
        if isinstance(sent, Known):
            return self._assumed(sent) if sent.get(key) is not None else None
        if sent is None:
            return None
        own.saw(claim.n)
        own.left(claim.n)
        if mark:
            self._context.started(prefix, mark)
        if heir is not None:
            return Outcome(c.Done(), self._granted(heir, sent))
        self._context.busy.pop(prefix, None)
        return Outcome(c.Done())

    def _assumed(self, known: Known) -> Known:
        """Add our session and the epoch from memory; the step compares what it uses."""
        record = encode(list(self._record))
        known.kvs[self._session] = Kv(self._session, record, self._own.mod, self._record.lease)
        known.kvs[k.EPOCH_KEY] = self._base_kv
        return known

    def _grant(self, heir: _Heir, slot: Slot) -> list[str]:
        """Return the writes that grant the heir, with a word for it if its session is not ours."""
        keys, epoch, claim, owner = self._keys, self._base.epoch, heir.granted.claim, heir.owner
        value = k.packed_claim(claim, owner, epoch, slot.tokens)
        puts = [keys.put(heir.granted.keys()[0], value, owner.lease)]
        theirs = self._execution.own.get(claim.session)
        if theirs is None or theirs.deliver is None:
            heirs = k.told_heirs(heir.granted.heirs)
            said = k.packed_word(k.Word([WAKE_GRANTED], RELATIVE, heirs=heirs), epoch, slot.tokens)
            puts.append(keys.put(k.word_key(claim.session, claim.n), said, owner.lease))
        return puts

    def _granted(self, heir: _Heir, sent: Committed) -> list[Wake]:
        claim, own = heir.granted.claim, self._execution.own
        claim.token = sent.token(self._base.epoch)
        theirs = own.get(claim.session)
        if theirs is not None:
            theirs.note(claim, heir.granted.slot, sent.answer.revision, heir.granted.heirs)
        wakes = [Wake(heir.owner.inbox, claim.session, claim.n, WAKE_GRANTED, claim.token)]
        own.deliver(wakes)
        return wakes
