"""What the table has changed, as one transaction: comparisons, and keys to put and delete.

A plan compares everything the table's decision rests on:

  - of each resource, that nothing was written since it was read, as far as the table looked;
  - of each claim it changes, one of its keys (all places of a claim are always written together);
  - that each session a claim or word belongs to is there, so no put meets a lease that is gone;
  - the epoch, if a token is given or an event is logged.

Deletions inside a range are not seen by such a comparison, and need not be: a holder that is gone
makes room, and one who waits for that is woken by its watch, which begins at the revision read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, REVOKED, WAKE_LOOK, Wake
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.gateway import Committed, Proposal, Slot
from lockfast.stores.etcd.layout import Word
from lockfast.stores.etcd.owned import OwnSessions
from lockfast.stores.etcd.requests import OPERATIONS_MAX, Found, Keys, Kv, Range, txn
from lockfast.stores.etcd.view import Lines, View

HEIRS_MAX: Final = 4
"""Every grant but one in five is then made without a read, as long as nobody leaves the line."""


class TooLargeError(Exception):
    """The step does not fit into one transaction."""


@dataclass
class _Put:
    key: str
    session: str
    """Whose lease it is under; "" for none."""
    value: str = ""
    claim: Claim | None = None
    span_ms: int = 0
    """Length of the separate lease that this key is bound to."""


@dataclass
class Plan:
    """One transaction, and what follows from it."""

    view: View
    wakes: list[Wake]
    compares: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    puts: list[_Put] = field(default_factory=list)
    spans: list[int] = field(default_factory=list)
    """Lengths of leases to be granted before the transaction is sent."""
    tokens: int = 0
    heirs: dict[tuple[str, int], Found] = field(default_factory=dict)
    """Of claims that are granted and alone at their resource, who is served next."""

    @property
    def is_empty(self) -> bool:
        return not (self.deletes or self.puts)

    def proposal(self, keys: Keys, leases: list[int], wants: Iterable[Range]) -> Proposal:
        """The transaction; if a comparison fails it reads everything anew."""
        view, base = self.view, self.view.base
        reads = keys.reads(wants)
        events = view.logged

        def body(slot: Slot) -> str:
            left = iter(leases)
            operations = [keys.delete(key) for key in self.deletes]
            for put in self.puts:
                value = put.value
                lease = next(left) if put.span_ms else self._lease(put.session)
                if put.claim is not None:
                    owner = view.owners[put.claim.session]
                    value = k.packed_claim(put.claim, owner, base.epoch, slot.tokens)
                elif put.key[0] == "b":
                    value = self._word(put.value, slot.tokens)
                operations.append(keys.put(put.key, value, lease))
            if events:
                packed = [k.packed_event(event, base.epoch, slot.tokens) for event in events]
                operations.append(keys.put(f"l\x1f{slot.order:02}", k.encode(packed)))
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

    def _word(self, value: str, tokens: int) -> str:
        """A word whose token is known now but for the revision."""
        said = k.typed(Word, k.decode(value))
        if said.offset >= k.RELATIVE:
            said = said._replace(offset=self.view.base.epoch + tokens + said.offset - k.RELATIVE)
        return k.encode(list(said))

    def resolved(self, value: Any, committed: Committed) -> Any:
        """A token, or an answer with tokens in it, now that the transaction has given them."""
        if isinstance(value, int):
            if value < k.RELATIVE:
                return value
            return committed.token(self.view.base.epoch, value - k.RELATIVE)
        if isinstance(value, tuple):
            items = [self.resolved(item, committed) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value


def make_plan(
    view: View, wakes: list[Wake], own: OwnSessions, keys: Keys, command: c.Command | None
) -> Plan:
    """What is to be written after the table has run."""
    plan = Plan(view, wakes)
    maker = _Maker(plan, own, keys)
    for lines in view.lines.values():
        maker.resource(lines)
    for of, claim in view.claims.items():
        before = view.claims_before.get(of)
        if claim != before:
            maker.claim(of, before, claim)
        elif isinstance(command, c.Break) and claim is not None and of in view.looked_up:
            maker.claim_stands(of)  # a witness: no deadlock if it is not as it was seen
    for session, row in view.sessions.items():
        kv = view.known.kvs.get(k.alive_key(session))
        mine = own.get(session)
        if mine is not None and mine.was_opened and not row.ended and _was_renewed(row, kv):
            stored = k.Alive(row.renewals, row.deadline_ms - row.ttl_ms)
            maker.put(_Put(k.alive_key(session), session, k.encode(list(stored))))
    maker.heirs()
    maker.words()
    if not plan.is_empty:
        maker.finish()
    return plan


def _was_renewed(row: Any, kv: Any) -> bool:
    stored = k.typed(k.Alive, k.decode(kv.value)) if kv is not None else k.Alive(0, 0)
    return bool(row.renewals != stored.renewals)


class _Maker:
    def __init__(self, plan: Plan, own: OwnSessions, keys: Keys) -> None:
        self._plan = plan
        self._view = plan.view
        self._own = own
        self._keys = keys
        self._sessions: set[str] = set()
        """Whose keys must be there."""
        self._words: dict[tuple[str, int], Word] = {}
        self._relied: list[Lines] = []
        self._granted: list[Claim] = []

    def put(self, put: _Put) -> None:
        self._plan.puts.append(put)
        if put.session:
            self._sessions.add(put.session)
        if put.span_ms:
            self._plan.spans.append(put.span_ms)

    def delete(self, *keys: str) -> None:
        self._plan.deletes += [key for key in keys if key not in self._plan.deletes]

    # ── resources ────────────────────────────────────────────────────────────────────

    def resource(self, lines: Lines) -> None:
        row, before, prefix = lines.row, lines.before, lines.prefix
        assert before is not None
        now_ms = self._view.now_ms
        if row.closed_ms > now_ms and (row.closed_ms > before.closed_ms or lines.stale_delays):
            span_ms = row.closed_ms - now_ms
            closing = k.Closing(row.closed_ms, row.limit)
            self.put(_Put(f"{prefix}c", "", k.encode(list(closing)), span_ms=span_ms))
            self.delete(*lines.stale_delays)
        in_use = row.holders or row.waiting or row.reservations
        if in_use and row.limit != before.limit and before.limit:
            self.put(_Put(f"{prefix}e", "", k.encode(row.limit)))
        elif not in_use and lines.limit_is_stored:
            self.delete(f"{prefix}e")
        self._relied.append(lines)

    def _rely(self, lines: Lines) -> None:
        row, before = lines.row, lines.before
        end = lines.relied_end
        takes_no_more = row.held.get(EXCLUSIVE) or row.closed_ms > self._view.now_ms
        if before is None or not before.waiting or not (row.waiting or takes_no_more):
            end = k.end_of(lines.prefix)  # whoever stands there by now must not be passed over
        revision = self._view.known.revision
        self._plan.compares.append(self._keys.nothing_since(f"{lines.prefix}c", end, revision))

    # ── claims ───────────────────────────────────────────────────────────────────────

    def claim(self, of: tuple[str, int], before: Claim | None, after: Claim | None) -> None:
        session, n = of
        if before is not None:
            self.claim_stands(of)
        stood = before is not None and before.state != REVOKED
        stands = after is not None and after.state != REVOKED
        old = {key for _, key in k.keys_of(before)} if before is not None and stood else set()
        new = [key for _, key in k.keys_of(after)] if after is not None and stands else []
        self.delete(*sorted(old.difference(new)))
        for key in new:
            self.put(_Put(key, session, claim=after))
        if after is not None and after.token >= k.RELATIVE:
            self._plan.tokens += after.block
            self._granted.append(after)
        self._beside(before if stood else None, after if stands else None)
        if after is not None and after.state == REVOKED:
            packed = k.packed_claim(after, self._view.owners[session], 0, 0)
            self._words[of] = Word([], -1, after.reason, after.by, packed)
        elif before is not None and not stands:
            self._forget_word(session, n)

    def _forget_word(self, session: str, n: int) -> None:
        mine = self._own.get(session)
        key = k.word_key(session, n)
        known = key in self._view.known.kvs
        if known or (mine is not None and n in mine.claims and mine.claims[n].has_word):
            self.delete(key)

    def _beside(self, before: Claim | None, after: Claim | None) -> None:
        """The keys that go with a holder: its lock_delay, its max_hold."""
        for claim, other, is_put in ((after, before, True), (before, after, False)):
            if claim is not None and claim.wants and not (other is not None and other.wants):
                prefix = k.resource_prefix(*claim.places[0][:2])
                key = k.converting_key(prefix, claim.session, claim.n)
                if is_put:
                    self.put(_Put(key, claim.session))
                else:
                    self.delete(key)
        held = before is not None and before.state == HOLDING
        holds = after is not None and after.state == HOLDING
        if holds and not held and after is not None:
            if after.lock_delay_ms:
                for place in after.places:
                    prefix = k.resource_prefix(place.kind, place.name)
                    key = k.delay_key(prefix, after.session, after.n)
                    delay = k.Closing(after.lock_delay_ms, place.limit)
                    self.put(_Put(key, "", k.encode(list(delay))))
            if after.until_ms:
                key = k.bound_key(after.session, after.n)
                self.put(_Put(key, "", k.encode(after.until_ms), span_ms=after.max_hold_ms))
        elif held and not holds and before is not None:
            if before.lock_delay_ms:
                for place in before.places:
                    prefix = k.resource_prefix(place.kind, place.name)
                    self.delete(k.delay_key(prefix, before.session, before.n))
            if before.until_ms:
                self.delete(k.bound_key(before.session, before.n))

    def claim_stands(self, of: tuple[str, int]) -> None:
        """It is compared that a claim is as it was read."""
        kv = self._view.kv_of.get(of)
        if kv is None:
            kv = self._view.known.kvs.get(k.word_key(*of))
        if kv is not None:
            self._plan.compares.append(self._keys.unchanged(kv.key, kv.mod))

    def heirs(self) -> None:
        """Whom each granted claim will hand over to, if it can tell that without reading.

        When it leaves, it compares that nothing was written since this transaction. So what it
        is told must be complete now, and this transaction compares as far as that reaches.
        """
        for claim in self._granted:
            lines = self._view.lines[claim.places[0][:2]]
            row, prefix = lines.row, lines.prefix
            if len(claim.places) > 1 or row.holders > 1 or row.reservations or row.closed_ms:
                continue
            if not lines.is_plain or any(
                put.key.startswith(f"{prefix}w") for put in self._plan.puts
            ):
                continue
            left = [kv for kv in lines.waiting_kvs if kv.key not in self._plan.deletes]
            gone = len(lines.waiting_kvs) - len(left)
            heirs = list(takewhile(self._is_heir, left[:HEIRS_MAX]))
            if heirs:
                # Others may come behind the last one meanwhile: that is not compared.
                lines.relied_end = max(lines.relied_end, f"{heirs[-1].key}\x00")
                self._plan.heirs[claim.session, claim.n] = Found(heirs, len(heirs) + 1)
            elif lines.stored_waiting == gone:
                lines.relied_end = k.end_of(prefix)
                self._plan.heirs[claim.session, claim.n] = Found([], 0)

    def _is_heir(self, kv: Kv) -> bool:
        return bool(kv.value) and not self._view.is_ending(k.parse_place(kv.key).session)

    # ── words ────────────────────────────────────────────────────────────────────────

    def words(self) -> None:
        """Tell sessions of other processes, in the transaction that it is about."""
        for wake in self._plan.wakes:
            of = (wake.session, wake.n)
            mine = self._own.get(wake.session)
            if not wake.n or wake.session not in self._view.owners:
                continue  # the end of a session shows by its key
            if mine is not None and mine.deliver is not None and of not in self._words:
                continue
            word = self._words.get(of, Word([]))
            word.whats.append(wake.what)
            if wake.token:
                heirs = self._plan.heirs.get(of)
                told = None if heirs is None else [[kv.key, kv.value, kv.mod] for kv in heirs.kvs]
                word = word._replace(offset=wake.token, heirs=told)
            self._words[of] = word
        for (session, n), word in self._words.items():
            if not word.whats:
                word.whats.append(WAKE_LOOK)
            self.put(_Put(k.word_key(session, n), session, k.encode(list(word))))

    # ── the rest ─────────────────────────────────────────────────────────────────────

    def finish(self) -> None:
        plan, view, keys = self._plan, self._view, self._keys
        for lines in self._relied:
            self._rely(lines)
        for session in sorted(self._sessions):
            kv = view.known.kvs.get(k.session_key(session))
            if kv is not None and self._own.get(session) is not None:
                plan.compares.append(keys.unchanged(kv.key, kv.mod))
            else:
                plan.compares.append(keys.present(k.session_key(session)))
        base = view.known.kvs.get(k.EPOCH_KEY)
        if plan.tokens or view.logged:
            plan.compares.append(keys.same(k.EPOCH_KEY, base))
        if base is None and plan.tokens:
            self.put(_Put(k.EPOCH_KEY, "", k.encode(list(view.base))))
        elif plan.tokens > k.STRIDE:
            # Later tokens must be above the whole block.
            raised = view.base._replace(epoch=view.base.epoch + plan.tokens)
            self.put(_Put(k.EPOCH_KEY, "", k.encode(list(raised))))
