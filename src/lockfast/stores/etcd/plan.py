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

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, NamedTuple

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
from lockfast.stores.etcd.requests import OPERATIONS_MAX, Found, Range, txn
from lockfast.stores.etcd.view import Lines, View

OTHERS_COMPARED_MAX: Final = 16
"""If more holders stay, none of them is compared: when many leave together, releases that have to
decide again cost more than the wait that they avoid."""
HEIRS_MAX: Final = 4
"""With this many, four grants in five need no read, as long as no claim leaves the queue."""


class TooLargeError(Exception):
    """The step does not fit into one transaction."""


class _Put(NamedTuple):
    key: str
    session: str = ""
    """The session whose lease the key is under; "" for none."""
    value: str | Callable[[int], str] = ""
    """The value; a function if it depends on the tokens allocated earlier in the same request."""
    span_ms: int = 0
    """The length of this key's separate lease."""


class Plan:
    """The transaction that writes what the table has changed, and its consequences."""

    def __init__(
        self, view: View, wakes: list[Wake], context: Context, command: object = None
    ) -> None:
        self.view = view
        self.wakes = wakes
        self.keys = context.keys
        self._context = context
        self._own = context.own
        self._compares: list[str] = []
        self._deletes: dict[str, str] = {}
        """Keys to delete or, with an end that is not "", ranges of keys."""
        self._puts: list[_Put] = []
        self._tokens = 0
        self.starts: dict[str, str] = {}
        """For each resource whose queue gets a new start, its rank."""
        self._joined: set[str] = set()
        """Resources whose queue is joined by a claim."""
        self.heirs: dict[ClaimId, Found | None] = {}
        """For each granted claim that is the only holder, the next claims in the queue."""
        self._words: dict[ClaimId, Word] = {}
        self._granted: list[Claim] = []
        for lines in view.lines.values():
            self._resource(lines)
        for of, before, after in view.changes():
            if after != before:
                self._claim(of, before, after)
            elif isinstance(command, c.Break) and after is not None and of in view.looked_up:
                self._claim_stands(of)  # a witness: if it has changed, there is no deadlock
        self._add_renewals()
        self._find_heirs()
        self._add_starts()
        self._add_words()
        if not self.is_empty:
            self._finish()

    @property
    def is_empty(self) -> bool:
        return not (self._deletes or self._puts or self.view.logged)

    @property
    def spans(self) -> list[int]:
        """Return the lengths of the leases to grant before the transaction is sent."""
        return [put.span_ms for put in self._puts if put.span_ms]

    def proposal(self, leases: list[int], wants: Iterable[Range]) -> Proposal:
        """Build the transaction; if a comparison fails, it reads everything again."""
        view, keys = self.view, self.keys
        reads = keys.reads(wants)

        def body(slot: Slot) -> str:
            left = iter(leases)
            operations = [keys.delete(*span) for span in self._deletes.items()]
            for key, session, value, span_ms in self._puts:
                text = value if isinstance(value, str) else value(slot.tokens)
                lease = view.owners[session].lease if session else 0
                operations.append(keys.put(key, text, next(left) if span_ms else lease))
            if view.logged:
                events = k.packed_events(view.logged, view.base.epoch, slot.tokens)
                operations.append(keys.put(k.log_key(slot.order), events))
            return txn(operations, self._compares, reads)

        size = max(len(self._compares), len(self._deletes) + len(self._puts) + 1, len(reads))
        if size > OPERATIONS_MAX:
            raise TooLargeError
        writes = frozenset(map(k.scope_of, [*self._deletes, *(put.key for put in self._puts)]))
        compared = {lines.prefix for lines in view.lines.values()}
        compared.update(k.scope_of(kv.key) for kv in view.kv_of.values())
        compared.update(k.session_key(session) for session in view.owners)
        compared.update(k.word_key(*of) for of in view.looked_up)
        compared.add(k.EPOCH_KEY)
        return Proposal(body, size, writes, self._tokens, frozenset(compared))

    def _put(
        self, key: str, session: str = "", value: str | Callable[[int], str] = "", span_ms: int = 0
    ) -> None:
        self._puts.append(_Put(key, session, value, span_ms))

    def _delete(self, *keys: str) -> None:
        self._deletes.update(dict.fromkeys(keys, ""))

    # ── resources and sessions ───────────────────────────────────────────────────────

    def _resource(self, lines: Lines) -> None:
        row, before, prefix = self.view.row(lines), lines.before, lines.prefix
        now_ms = self.view.instant.now_ms
        if row.closed_ms > now_ms and (row.closed_ms > before.closed_ms or lines.stale_delays):
            closing = encode(list(k.Closing(row.closed_ms, row.limit)))
            # Clients add a millisecond for stores that count whole ones; a lease needs none.
            self._put(f"{prefix}c", "", closing, max(1, row.closed_ms - now_ms - 1))
            self._delete(*lines.stale_delays)
        in_use = row.holders or row.waiting or row.reservations
        if in_use and row.limit != before.limit and before.limit:
            self._put(f"{prefix}e", "", encode(row.limit))
        elif not in_use and lines.limit_is_stored:
            self._delete(f"{prefix}e")

    def _add_renewals(self) -> None:
        for row in self.view.sessions():
            key = k.alive_key(row.id)
            stored = k.alive_from(self.view.known.get(key), 0)
            is_open = self._own.get(row.id) is not None and not row.ended
            if is_open and row.renewals != stored.renewals:
                alive = k.Alive(row.renewals, row.deadline_ms - row.ttl_ms)
                self._put(key, row.id, encode(list(alive)))

    # ── claims ───────────────────────────────────────────────────────────────────────

    def _claim(self, of: ClaimId, before: Claim | None, after: Claim | None) -> None:
        if before is not None:
            self._claim_stands(of)
        stands = after if after is not None and after.state != REVOKED else None
        old = self._puts_of(before)
        new = self._puts_of(stands)
        self._delete(*(key for key in old if key not in new))
        if stands is not None:
            self._joins(stands, old)
        # Other keys than those of the claim itself never change.
        self._puts += [put for key, put in new.items() if callable(put.value) or key not in old]
        if after is not None and after.token >= RELATIVE:
            self._tokens += after.block
            self._granted.append(after)
        if after is not None and stands is None:
            packed = k.packed_claim(after, self.view.owners[of[0]], 0, 0)
            self._words[of] = Word([], -1, after.reason, after.by, packed)
        elif before is not None and stands is None:
            self._forget_word(of)

    def _puts_of(self, claim: Claim | None) -> dict[str, _Put]:
        """Return the keys of a claim: one per place, and the additional ones of a holder."""
        if claim is None or claim.state == REVOKED:
            return {}
        session, n, view = claim.session, claim.n, self.view
        slot = view.slot_of((session, n))

        def value(tokens: int) -> str:
            return k.packed_claim(claim, view.owners[session], view.base.epoch, tokens)

        puts = [_Put(key, session, value) for _, key in k.keys_of(claim, slot)]
        prefixes = [k.resource_prefix(place.kind, place.name) for place in claim.places]
        if claim.state == HOLDING:
            if claim.wants:
                puts.append(_Put(k.place_key(prefixes[0], "f", session, slot), session))
            if claim.lock_delay_ms:
                for prefix, place in zip(prefixes, claim.places, strict=True):
                    delay = encode(list(k.Closing(claim.lock_delay_ms, place.limit)))
                    puts.append(_Put(k.place_key(prefix, "d", session, slot), "", delay))
            if claim.until_ms:
                until = encode(claim.until_ms)
                puts.append(_Put(k.bound_key(session, n), "", until, claim.max_hold_ms))
        return {put.key: put for put in puts}

    def _joins(self, claim: Claim, old: Collection[str]) -> None:
        """Delete the starts behind a claim in the queues that it joins, or in which it moves."""
        for place, key in k.keys_of(claim, self.view.slot_of((claim.session, claim.n))):
            prefix = k.resource_prefix(place.kind, place.name)
            if key.startswith(f"{prefix}w") and key not in old:
                self._joined.add(prefix)
                self._deletes.update([k.starts_from(prefix, claim.rank)])

    def _forget_word(self, of: ClaimId) -> None:
        mine, key = self._own.get(of[0]), k.word_key(*of)
        own = mine.claims.get(of[1]) if mine is not None else None
        if key in self.view.known.kvs or (own is not None and own.has_word):
            self._delete(key)

    def _claim_stands(self, of: ClaimId) -> None:
        """Compare that a claim is unchanged since it was read."""
        kv = self.view.kv_of.get(of) or self.view.known.get(k.word_key(*of))
        if kv is not None:
            self._compares.append(self.keys.unchanged(kv.key, kv.mod))

    def _find_heirs(self) -> None:
        """Record which claims each granted claim can hand over to without a read.

        Its release compares that nothing was written since this transaction. The list must
        therefore be complete now, so this transaction compares the queue up to the last heir.
        """
        for claim in self._granted:
            lines = self.view.lines[claim.places[0][:2]]
            row, waiting = self.view.row(lines), f"{lines.prefix}w"
            is_alone = len(claim.places) == row.holders == 1 and lines.is_plain
            if not is_alone or row.reservations or row.closed_ms:
                continue
            if not any(put.key.startswith(waiting) for put in self._puts):
                heirs = self.view.heirs(lines, HEIRS_MAX, self._deletes)
                self.heirs[claim.session, claim.n] = heirs

    def _add_starts(self) -> None:
        """Mark where a queue starts, if a waiting claim is granted and none joins.

        The start is the first claim that goes on waiting or, if none does, the last one granted.
        """
        for claim in self._granted:
            before = self.view.before.get((claim.session, claim.n))
            if before is None or before.state == HOLDING:
                continue
            for place in claim.places:
                lines = self.view.lines[place[:2]]
                read = lines.queue.kvs
                if not read or lines.prefix in self._joined:
                    continue
                left = [kv for kv in read if kv.key not in self._deletes]
                rank = k.parse_place((left or read[-1:])[0].key).rank
                is_later = rank > max([lines.start, *lines.stored_starts])
                if is_later and self._context.marks_start():
                    self._mark(lines, rank, claim.session)

    def _mark(self, lines: Lines, rank: str, session: str) -> None:
        if lines.prefix not in self.starts:
            start = k.place_key(lines.prefix, "a", rank)
            self.starts[lines.prefix] = rank
            self._deletes[k.place_key(lines.prefix, "a", lines.start)] = start
            lines.relied_end = max(lines.relied_end, f"{lines.prefix}w\x1f{rank}")
            self._put(start, session)

    # ── words ────────────────────────────────────────────────────────────────────────

    def _add_words(self) -> None:
        """Notify sessions of other processes, in the same transaction."""
        for wake in self.wakes:
            of, mine = (wake.session, wake.n), self._own.get(wake.session)
            if not wake.n or wake.session not in self.view.owners:
                continue  # a deleted session key already signals the end of a session
            if mine is not None and mine.deliver is not None and of not in self._words:
                continue
            word = self._words.get(of, Word([]))
            word.whats.append(wake.what)
            if wake.token:
                heirs = self.heirs.get(of)
                word = word._replace(offset=wake.token, heirs=k.told_heirs(heirs))
            self._words[of] = word
        for of, word in self._words.items():
            if not word.whats:
                word.whats.append(WAKE_LOOK)
            self._put(k.word_key(*of), of[0], partial(k.packed_word, word, self.view.base.epoch))

    # ── the rest ─────────────────────────────────────────────────────────────────────

    def _finish(self) -> None:
        view, keys = self.view, self.keys
        for lines in view.lines.values():
            self._compares += self._nothing_new(lines)
        for session in sorted({put.session for put in self._puts if put.session}):
            kv = view.known.get(k.session_key(session))
            if kv is not None and self._own.get(session) is not None:
                self._compares.append(keys.unchanged(kv.key, kv.mod))
            else:
                self._compares.append(keys.present(k.session_key(session)))
        base = view.known.get(k.EPOCH_KEY)
        if self._tokens or view.logged:
            self._compares.append(keys.same(k.EPOCH_KEY, base))
        others = [key for lines in view.lines.values() for key in self._others(lines)]
        room = max(0, OPERATIONS_MAX - len(self._compares))
        self._compares += map(keys.present, others[:room])
        if base is None and self._tokens:
            self._put(k.EPOCH_KEY, "", encode(list(view.base)))
        elif self._tokens > k.STRIDE:
            # Later tokens must be higher than the whole block.
            raised = view.base._replace(epoch=view.base.epoch + self._tokens)
            self._put(k.EPOCH_KEY, "", encode(list(raised)))

    def _others(self, lines: Lines) -> list[str]:
        """Return the keys of holders for which claims wait after another holder has left.

        One per mode suffices, since any of them is replaced by the next until all have left. It is
        the next one in the order of keys, so that holders that leave together rarely choose the
        same one. Permits count by their weight, so all of them are returned.
        """
        row, prefix = self.view.row(lines), f"{lines.prefix}h{k.SEP}"
        is_awaited = row.waiting or row.reservations or row.converting
        left = [key for key in self._deletes if key.startswith(prefix)]
        if not left or not is_awaited or row.holders > OTHERS_COMPARED_MAX:
            return []
        stay: dict[str, list[str]] = {}
        for of, before, after in self.view.changes():
            if before is not None and before == after and before.state == HOLDING:
                for place, key in k.keys_of(before, self.view.slot_of(of)):
                    if key.startswith(prefix):
                        stay.setdefault(place.mode, []).append(key)
        permits = stay.pop(PERMIT, [])
        following = [min(keys, key=lambda key: (key < left[0], key)) for keys in stay.values()]
        return [*following, *permits]

    def _nothing_new(self, lines: Lines) -> list[str]:
        """Compare that nothing was written at a resource, as far as the table relied on it."""
        row, before, end = self.view.row(lines), lines.before, lines.relied_end
        takes_no_more = row.held.get(EXCLUSIVE) or row.closed_ms > self.view.instant.now_ms
        if not before.waiting or not (row.waiting or takes_no_more):
            end = k.end_of(lines.prefix)  # a claim that arrived since must not be passed over
        revision = self.view.known.revision
        return k.nothing_new(self.keys, lines.prefix, lines.start, end, revision)
