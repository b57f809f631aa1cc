"""Turn the changes of the lock table into one transaction.

A plan compares everything the table's decision rests on:

  - of each resource, that nothing was written since it was read, as far as the table relied on it,
    and that the start of its queue exists, if only a part of the queue was read because of it;
  - of each claim it changes, one of its keys (all places of a claim are always written together);
  - that the session of each claim or word exists, so that no put uses an expired lease;
  - the epoch, if a token is allocated or an event is logged;
  - if a holder leaves and claims go on waiting for others: that one of these is still there.

A comparison of a range does not detect deletions, so readers that are released at the same moment
would each see another holder, and none would grant the lock to the next claim. Therefore each of
them compares that another holder exists: the last one finds none, and decides again. Apart from
that a deletion need not be detected: a holder that is gone makes room, and a claim waiting for that
is woken by its watch, which starts at the revision read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, REVOKED, WAKE_LOOK, Wake
from lockfast.core.modes import EXCLUSIVE, PERMIT
from lockfast.core.rows import Claim
from lockfast.stores.derived.stored import RELATIVE, encode
from lockfast.stores.derived.view import ClaimId
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.batches import Proposal, Slot
from lockfast.stores.etcd.context import Context
from lockfast.stores.etcd.layout import Word
from lockfast.stores.etcd.requests import OPERATIONS_MAX, Found, Keys, Range, txn
from lockfast.stores.etcd.view import Lines, View

OTHERS_COMPARED_MAX: Final = 16
"""If more holders stay, none of them is compared: when many leave together, releases that have to
decide again cost more than the wait that they avoid."""
HEIRS_MAX: Final = 4
"""With this many, four grants in five need no read, as long as no claim leaves the queue."""


class TooLargeError(Exception):
    """The step does not fit into one transaction."""


@dataclass
class _Put:
    key: str
    session: str = ""
    """The session whose lease the key is under; "" for none."""
    value: str = ""
    claim: Claim | None = None
    word: Word | None = None
    span_ms: int = 0
    """The length of this key's separate lease."""


@dataclass
class Plan:
    """One transaction and its consequences."""

    view: View
    wakes: list[Wake]
    compares: list[str] = field(default_factory=list)
    deletes: dict[str, str] = field(default_factory=dict)
    """Keys to delete or, with an end that is not "", ranges of keys."""
    puts: list[_Put] = field(default_factory=list)
    tokens: int = 0
    starts: dict[str, str] = field(default_factory=dict)
    """For each resource whose queue gets a new start, its rank."""
    joined: set[str] = field(default_factory=set)
    """Resources whose queue is joined by a claim."""
    heirs: dict[ClaimId, Found | None] = field(default_factory=dict)
    """For each granted claim that is the only holder, the next claims in the queue."""

    @property
    def is_empty(self) -> bool:
        return not (self.deletes or self.puts or self.view.logged)

    @property
    def spans(self) -> list[int]:
        """Return the lengths of the leases to grant before the transaction is sent."""
        return [put.span_ms for put in self.puts if put.span_ms]

    def proposal(self, keys: Keys, leases: list[int], wants: Iterable[Range]) -> Proposal:
        """Build the transaction; if a comparison fails, it reads everything again."""
        view, epoch = self.view, self.view.base.epoch
        reads = keys.reads(wants)

        def body(slot: Slot) -> str:
            left = iter(leases)
            operations = [keys.delete(*span) for span in self.deletes.items()]
            for put in self.puts:
                value = put.value
                if put.claim is not None:
                    owner = view.owners[put.claim.session]
                    value = k.packed_claim(put.claim, owner, epoch, slot.tokens)
                elif put.word is not None:
                    value = k.packed_word(put.word, epoch, slot.tokens)
                lease = next(left) if put.span_ms else self._lease(put.session)
                operations.append(keys.put(put.key, value, lease))
            if view.logged:
                events = k.packed_events(view.logged, epoch, slot.tokens)
                operations.append(keys.put(k.log_key(slot.order), events))
            return txn(operations, self.compares, reads)

        size = max(len(self.compares), len(self.deletes) + len(self.puts) + 1, len(reads))
        if size > OPERATIONS_MAX:
            raise TooLargeError
        writes = frozenset(map(k.scope_of, [*self.deletes, *(put.key for put in self.puts)]))
        compared = {lines.prefix for lines in view.lines.values()}
        compared.update(k.scope_of(kv.key) for kv in view.kv_of.values())
        compared.update(k.session_key(session) for session in view.owners)
        compared.update(k.word_key(*of) for of in view.looked_up)
        compared.add(k.EPOCH_KEY)
        return Proposal(body, size, writes, self.tokens, frozenset(compared))

    def _lease(self, session: str) -> int:
        return self.view.owners[session].lease if session else 0


def make_plan(view: View, wakes: list[Wake], context: Context, keys: Keys, command: object) -> Plan:
    """Return the transaction that writes what the table has changed."""
    plan = Plan(view, wakes)
    maker = _Maker(plan, context, keys)
    for lines in view.lines.values():
        maker.resource(lines)
    for of, before, after in view.changes():
        if after != before:
            maker.claim(of, before, after)
        elif isinstance(command, c.Break) and after is not None and of in view.looked_up:
            maker.claim_stands(of)  # a witness: if it has changed, there is no deadlock
    maker.renewals()
    maker.heirs()
    maker.starts()
    maker.words()
    if not plan.is_empty:
        maker.finish()
    return plan


class _Maker:
    def __init__(self, plan: Plan, context: Context, keys: Keys) -> None:
        self._plan = plan
        self._view = plan.view
        self._context = context
        self._own = context.own
        self._keys = keys
        self._words: dict[ClaimId, Word] = {}
        self._granted: list[Claim] = []

    def put(self, put: _Put) -> None:
        self._plan.puts.append(put)

    def delete(self, *keys: str) -> None:
        self._plan.deletes.update(dict.fromkeys(keys, ""))

    # ── resources and sessions ───────────────────────────────────────────────────────

    def resource(self, lines: Lines) -> None:
        row, before, prefix = self._view.row(lines), lines.before, lines.prefix
        now_ms = self._view.instant.now_ms
        if row.closed_ms > now_ms and (row.closed_ms > before.closed_ms or lines.stale_delays):
            closing = encode(list(k.Closing(row.closed_ms, row.limit)))
            # Clients add a millisecond for stores that count whole ones; a lease needs none.
            span_ms = max(1, row.closed_ms - now_ms - 1)
            self.put(_Put(f"{prefix}c", value=closing, span_ms=span_ms))
            self.delete(*lines.stale_delays)
        in_use = row.holders or row.waiting or row.reservations
        if in_use and row.limit != before.limit and before.limit:
            self.put(_Put(f"{prefix}e", value=encode(row.limit)))
        elif not in_use and lines.limit_is_stored:
            self.delete(f"{prefix}e")

    def renewals(self) -> None:
        for row in self._view.sessions():
            mine, key = self._own.get(row.id), k.alive_key(row.id)
            stored = k.alive_from(self._view.known.get(key), 0)
            is_open = mine is not None and mine.was_opened and not row.ended
            if is_open and row.renewals != stored.renewals:
                alive = k.Alive(row.renewals, row.deadline_ms - row.ttl_ms)
                self.put(_Put(key, row.id, encode(list(alive))))

    # ── claims ───────────────────────────────────────────────────────────────────────

    def claim(self, of: ClaimId, before: Claim | None, after: Claim | None) -> None:
        if before is not None:
            self.claim_stands(of)
        stood = before if before is not None and before.state != REVOKED else None
        stands = after if after is not None and after.state != REVOKED else None
        old = dict(self._keys_with(stood)) if stood is not None else {}
        new = dict(self._keys_with(stands)) if stands is not None else {}
        self.delete(*(key for key in old if key not in new))
        if stands is not None:
            self._joins(stands, old)
        for key, put in new.items():
            if put.claim is not None or key not in old:
                self.put(put)
        if after is not None and after.token >= RELATIVE:
            self._plan.tokens += after.block
            self._granted.append(after)
        if after is not None and after.state == REVOKED:
            packed = k.packed_claim(after, self._view.owners[of[0]], 0, 0)
            self._words[of] = Word([], -1, after.reason, after.by, packed)
        elif before is not None and stands is None:
            self._forget_word(of)

    def _keys_with(self, claim: Claim) -> Iterable[tuple[str, _Put]]:
        """Yield the keys of a claim: one per place, and the additional ones of a holder."""
        session, n = claim.session, claim.n
        slot = self._view.slot_of((session, n))
        for _, key in k.keys_of(claim, slot):
            yield key, _Put(key, session, claim=claim)
        if claim.state != HOLDING:
            return
        prefixes = [k.resource_prefix(place.kind, place.name) for place in claim.places]
        if claim.wants:
            key = k.converting_key(prefixes[0], session, slot)
            yield key, _Put(key, session)
        if claim.lock_delay_ms:
            for prefix, place in zip(prefixes, claim.places, strict=True):
                key = k.delay_key(prefix, session, slot)
                delay = encode(list(k.Closing(claim.lock_delay_ms, place.limit)))
                yield key, _Put(key, value=delay)
        if claim.until_ms:
            key = k.bound_key(session, n)
            yield key, _Put(key, value=encode(claim.until_ms), span_ms=claim.max_hold_ms)

    def _joins(self, claim: Claim, old: Collection[str]) -> None:
        """Delete the starts behind a claim in the queues that it joins, or in which it moves."""
        for place, key in k.keys_of(claim, self._view.slot_of((claim.session, claim.n))):
            prefix = k.resource_prefix(place.kind, place.name)
            if key.startswith(f"{prefix}w") and key not in old:
                self._plan.joined.add(prefix)
                self._plan.deletes.update([k.starts_from(prefix, claim.rank)])

    def _forget_word(self, of: ClaimId) -> None:
        mine, key = self._own.get(of[0]), k.word_key(*of)
        own = mine.claims.get(of[1]) if mine is not None else None
        if key in self._view.known.kvs or (own is not None and own.has_word):
            self.delete(key)

    def claim_stands(self, of: ClaimId) -> None:
        """Compare that a claim is unchanged since it was read."""
        kv = self._view.kv_of.get(of) or self._view.known.get(k.word_key(*of))
        if kv is not None:
            self._plan.compares.append(self._keys.unchanged(kv.key, kv.mod))

    def heirs(self) -> None:
        """Record which claims each granted claim can hand over to without a read.

        Its release compares that nothing was written since this transaction. The list must
        therefore be complete now, so this transaction compares the queue up to the last heir.
        """
        put = tuple(put.key for put in self._plan.puts)
        for claim in self._granted:
            lines = self._view.lines[claim.places[0][:2]]
            row, waiting = self._view.row(lines), f"{lines.prefix}w"
            is_alone = len(claim.places) == row.holders == 1 and lines.is_plain
            if not is_alone or row.reservations or row.closed_ms:
                continue
            if not any(key.startswith(waiting) for key in put):
                heirs = self._view.heirs(lines, HEIRS_MAX, set(self._plan.deletes))
                self._plan.heirs[claim.session, claim.n] = heirs

    def starts(self) -> None:
        """Mark where a queue starts, if a waiting claim is granted and none joins.

        The start is the first claim that goes on waiting or, if none does, the last one granted.
        """
        for claim in self._granted:
            before = self._view.before.get((claim.session, claim.n))
            if before is None or before.state == HOLDING:
                continue
            for place in claim.places:
                lines = self._view.lines[place[:2]]
                read = lines.waiting_kvs
                if not read or lines.prefix in self._plan.joined:
                    continue
                left = [kv for kv in read if kv.key not in self._plan.deletes]
                rank = k.parse_place((left or read[-1:])[0].key).rank
                is_later = rank > max([lines.start, *lines.stored_starts])
                if is_later and self._context.marks_start():
                    self._mark(lines, rank, claim.session)

    def _mark(self, lines: Lines, rank: str, session: str) -> None:
        if lines.prefix not in self._plan.starts:
            start = k.start_key(lines.prefix, rank)
            self._plan.starts[lines.prefix] = rank
            self._plan.deletes[k.start_key(lines.prefix, lines.start)] = start
            lines.relied_end = max(lines.relied_end, f"{lines.prefix}w\x1f{rank}")
            self.put(_Put(start, session))

    # ── words ────────────────────────────────────────────────────────────────────────

    def words(self) -> None:
        """Notify sessions of other processes, in the same transaction."""
        for wake in self._plan.wakes:
            of, mine = (wake.session, wake.n), self._own.get(wake.session)
            if not wake.n or wake.session not in self._view.owners:
                continue  # a deleted session key already signals the end of a session
            if mine is not None and mine.deliver is not None and of not in self._words:
                continue
            word = self._words.get(of, Word([]))
            word.whats.append(wake.what)
            if wake.token:
                heirs = self._plan.heirs.get(of)
                word = word._replace(offset=wake.token, heirs=k.told_heirs(heirs))
            self._words[of] = word
        for of, word in self._words.items():
            if not word.whats:
                word.whats.append(WAKE_LOOK)
            self.put(_Put(k.word_key(*of), of[0], word=word))

    # ── the rest ─────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        plan, view, keys = self._plan, self._view, self._keys
        for lines in view.lines.values():
            plan.compares += self._nothing_new(lines)
        for session in sorted({put.session for put in plan.puts if put.session}):
            kv = view.known.get(k.session_key(session))
            if kv is not None and self._own.get(session) is not None:
                plan.compares.append(keys.unchanged(kv.key, kv.mod))
            else:
                plan.compares.append(keys.present(k.session_key(session)))
        base = view.known.get(k.EPOCH_KEY)
        if plan.tokens or view.logged:
            plan.compares.append(keys.same(k.EPOCH_KEY, base))
        others = [key for lines in view.lines.values() for key in self._others(lines)]
        room = max(0, OPERATIONS_MAX - len(plan.compares))
        plan.compares += map(keys.present, others[:room])
        if base is None and plan.tokens:
            self.put(_Put(k.EPOCH_KEY, value=encode(list(view.base))))
        elif plan.tokens > k.STRIDE:
            # Later tokens must be higher than the whole block.
            raised = view.base._replace(epoch=view.base.epoch + plan.tokens)
            self.put(_Put(k.EPOCH_KEY, value=encode(list(raised))))

    def _others(self, lines: Lines) -> list[str]:
        """Return the keys of holders for which claims wait after another holder has left.

        One per mode suffices, since any of them is replaced by the next until all have left. It is
        the next one in the order of keys, so that holders that leave together rarely choose the
        same one. Permits count by their weight, so all of them are returned.
        """
        row, prefix = self._view.row(lines), f"{lines.prefix}h{k.SEP}"
        is_awaited = row.waiting or row.reservations or row.converting
        left = [key for key in self._plan.deletes if key.startswith(prefix)]
        if not left or not is_awaited or row.holders > OTHERS_COMPARED_MAX:
            return []
        stay: dict[str, list[str]] = {}
        for of, before, after in self._view.changes():
            if before is not None and before == after and before.state == HOLDING:
                for place, key in k.keys_of(before, self._view.slot_of(of)):
                    if key.startswith(prefix):
                        stay.setdefault(place.mode, []).append(key)
        permits = stay.pop(PERMIT, [])
        following = [min(keys, key=lambda key: (key < left[0], key)) for keys in stay.values()]
        return [*following, *permits]

    def _nothing_new(self, lines: Lines) -> list[str]:
        """Compare that nothing was written at a resource, as far as the table relied on it."""
        row, before, end = self._view.row(lines), lines.before, lines.relied_end
        takes_no_more = row.held.get(EXCLUSIVE) or row.closed_ms > self._view.instant.now_ms
        if not before.waiting or not (row.waiting or takes_no_more):
            end = k.end_of(lines.prefix)  # a claim that arrived since must not be passed over
        revision = self._view.known.revision
        return k.nothing_new(self._keys, lines.prefix, lines.start, end, revision)
