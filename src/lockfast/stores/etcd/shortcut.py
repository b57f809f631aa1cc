"""The steps that most locks ever take, in one request and without reading first.

`enter` takes a resource that nobody uses, or else joins its line, in one transaction:

    if   the session and the epoch are as known, and the resource has no key at all
    then put the holder's key
    else if   the session is as known, no claim of several places has a reservation here, and
              nobody stands behind our place in line
         then put the waiting key, and read the line
         else read the tail of the line

If others stand behind our place, our clock may be behind theirs: the rank is raised (`order.py`)
and the transaction sent once more, without the last comparison.

Only exclusive claims join like this: others may be compatible with the holders, so the table
decides. To join needs no further comparison, since a claim in line is always right. Whether it
could hold by now shows in what is read after the put; then a step grants it. `leave` deletes the
holder's key if nobody waits. Nothing is decided here that the lock table would decide
differently: the comparison with the table on random commands covers both.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, WAITING, Reply, Wake
from lockfast.core.lines import place_at
from lockfast.core.modes import CONFLICTS, EXCLUSIVE, MODES_OF_KIND, PERMIT
from lockfast.core.rows import Claim, ResourceRow, rank_of, session_key
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway, Proposal, Slot
from lockfast.stores.etcd.layout import Base, Owner
from lockfast.stores.etcd.order import lag_ms, tail_of
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.requests import Answer, Found, Range
from lockfast.stores.etcd.steps import LIMITS, Context, Outcome, Settle, Step
from lockfast.stores.etcd.transport import Json
from lockfast.stores.etcd.view import WINDOW, Instant, View


class Shortcut:
    """Tries one command the short way; None: it has to go the long way."""

    def __init__(
        self, gateway: Gateway, context: Context, until_ms: int, instant: Instant | None = None
    ) -> None:
        self._gateway = gateway
        self._keys = gateway.keys
        self._context = context
        self._until_ms = until_ms
        self._given = instant
        wall_us = gateway.network.wall_us()
        self._instant = instant or Instant(wall_us // 1000, wall_us)

    def _log(self, base: Base, what: str, claim: Claim, owner: Owner, slot: Slot) -> list[Json]:
        """The event, while somebody reads the log."""
        wall_ms = self._instant.wall_us // 1000
        if base.log_until_ms <= wall_ms:
            return []
        place = claim.places[0]
        detail = (claim.value or "") if what == "granted" else ""
        event = c.Event(
            0, wall_ms, what, place.kind, place.name, place.mode, claim.session, claim.n,
            owner.owner, claim.token, detail,
        )  # fmt: skip
        packed = [k.packed_event(event, base.epoch, slot.tokens)]
        return [self._keys.put(f"l\x1f{slot.order:02}", k.encode(packed))]

    # ── entering ─────────────────────────────────────────────────────────────────────

    async def enter(self, command: c.Enter) -> Outcome | None:
        own, base = self._context.own.get(command.session), self._context.base
        if own is None or own.record is None or own.ended or base is None:
            return None
        if not _is_plain(command) or own.is_used(command.n):
            return None
        if len(own.claims) >= LIMITS.claims_max:
            return None
        place = command.places[0]
        prefix = k.resource_prefix(place.kind, place.name)
        joins = command.queue and place.mode == EXCLUSIVE
        if not joins and prefix in self._context.busy:
            return None
        now_ms = self._instant.now_ms
        arrival = self._context.own.next_arrival(self._gateway.cluster.revision)
        entered_ms, may_overtake = now_ms, False
        while True:
            base = self._context.base or base
            claim = Claim(
                command.session, command.n, command.places, HOLDING,
                rank_of(entered_ms - command.head_start_ms, arrival), command.actor,
                command.priority, entered_ms, k.RELATIVE, now_ms, 0, 0, 0, 1, command.value,
            )  # fmt: skip
            mine = own.doubt(command.n, command.places, claim.rank)
            proposal = self._entering(claim, own, base, prefix, joins, may_overtake)
            try:
                committed = await self._gateway.txn(proposal, self._until_ms)
            except LeaseGoneError:
                own.undoubt(command.n)
                return None
            except StoreUnavailableError:
                own.undoubt(command.n)
                raise
            answer, slot = committed
            if answer.succeeded:
                own.doubted.discard(command.n)
                own.saw(command.n)
                token = base.epoch + slot.tokens + k.STRIDE * answer.revision
                mine.token, mine.mod = token, answer.revision
                mine.key = next(key for _, key in k.keys_of(claim))
                return Outcome(c.Granted(token, 0, place.mode), (), answer.revision)
            self._context.met(prefix)
            self._learn(answer.found(1))
            queued = answer.nested(0)
            if joins and queued.succeeded:
                break
            own.undoubt(command.n)
            if not joins or may_overtake:
                return None
            tail = queued.found(0).kvs
            waits = k.line_key(prefix, "w", claim.rank, claim.session, claim.n)
            if not tail or tail[0].key < waits:
                return None
            # Others stand behind that place. Those who came since we asked may be overtaken.
            entered_ms += lag_ms(tail, now_ms, arrival)
            may_overtake = True
        own.doubted.discard(command.n)
        own.saw(command.n)
        claim.state, claim.token, claim.granted_ms = WAITING, 0, 0
        try:
            return await self._joined(claim, queued, prefix)
        except StoreUnavailableError as error:
            # The claim stands in line: the error must not say that nothing was done.
            raise OutcomeUnknownError(error.store, error.what, error.advice) from error

    def _learn(self, found: Found) -> None:
        for kv in found.kvs:
            base = k.base_from(self._keys.label, kv)
            if base is not None:
                self._context.base, self._context.base_mod = base, kv.mod

    def _entering(
        self,
        claim: Claim,
        own: OwnSession,
        base: Base,
        prefix: str,
        joins: bool,
        may_overtake: bool,
    ) -> Proposal:
        keys, record = self._keys, own.record
        assert record is not None
        owner = Owner(*record[:5])
        held = next(key for _, key in k.keys_of(claim))
        waits = k.line_key(prefix, "w", claim.rank, claim.session, claim.n)
        end = k.end_of(prefix)
        lives = keys.unchanged(k.session_key(claim.session), own.mod)
        base_mod = self._context.base_mod
        waiting = Claim(
            claim.session, claim.n, claim.places, WAITING, claim.rank, claim.actor,
            claim.priority, claim.entered_ms, value=claim.value,
        )  # fmt: skip

        def body(slot: Slot) -> Json:
            join: Json = {"success": []}
            if joins:
                compares = [lives, keys.absent(f"{prefix}v\x1f", f"{prefix}v ")]
                if not may_overtake:
                    compares.append(keys.absent(waits, f"{prefix}w "))
                join = {
                    "compare": compares,
                    "success": [
                        keys.put(waits, k.packed_claim(waiting, owner, 0, 0), record.lease),
                        keys.range(Range(prefix, end, WINDOW)),
                        keys.range(Range(f"{prefix}w\x1f", waits, 1, True)),
                        keys.range(Range(f"{waits}\x00", end, 1)),
                        *self._log(base, "waiting", waiting, owner, slot),
                    ],
                    "failure": [keys.range(tail_of(prefix))],
                }
            value = k.packed_claim(claim, owner, base.epoch, slot.tokens)
            return {
                "compare": [
                    lives,
                    keys.absent(prefix, end),
                    keys.unchanged(k.EPOCH_KEY, base_mod),
                ],
                "success": [
                    keys.put(held, value, record.lease),
                    *self._log(base, "granted", claim, owner, slot),
                ],
                "failure": [{"request_txn": join}, keys.range(Range(k.EPOCH_KEY))],
            }

        compared = frozenset([prefix, k.session_key(claim.session), k.EPOCH_KEY])
        return Proposal(body, 8, frozenset([held, waits]), 1, compared)

    async def _joined(self, claim: Claim, answer: Answer, prefix: str) -> Outcome:
        """The claim stands in line: grant it if it could hold, else say whom it waits for."""
        line, before, behind = answer.found(1), answer.found(2), answer.found(3)
        place = claim.places[0]
        holders = [kv for kv in line.kvs if kv.key.startswith(f"{prefix}h\x1f")]
        is_first = not before.kvs
        wakes: list[Wake] = []
        others: list[tuple[Claim, Owner]] = []
        for kv in holders if is_first else before.kvs:
            others.append(k.claim_from(k.parse_place(kv.key), kv))
        if is_first:
            wakes += _wanted(others)
        for kv in behind.kvs:
            other, owner = k.claim_from(k.parse_place(kv.key), kv)
            wakes.append(Wake(owner.inbox, other.session, other.n, c.WAKE_LOOK))
        needs_step = bool(wakes) or line.count > LIMITS.waiting_max
        if is_first and (not _blocks(place, others) or len(holders) != len(line.kvs) - 1):
            needs_step = True
        if needs_step:
            step = _AfterJoin(
                self._gateway, self._context, Settle((place,)), self._until_ms, self._given
            )
            step.joined, step.extra = (claim.session, claim.n), wakes
            outcome = await step.run()
            look = c.Look(claim.session, claim.n)
            looked = await Step(
                self._gateway, self._context, look, self._until_ms, self._given
            ).run()
            return Outcome(looked.reply, outcome.wakes, answer.revision)
        now_ms = self._instant.now_ms
        blockers = tuple(
            c.Blocker(
                other.session,
                other.n,
                owner.owner,
                owner.process,
                0,
                other.state == HOLDING,
                other.token,
                max(0, now_ms - (other.granted_ms if other.token else other.entered_ms)),
            )
            for other, owner in others[:16]
        )
        look_ms = min((owner.ttl_ms for _, owner in others), default=1)
        return Outcome(c.Queued(blockers, max(1, look_ms)), (), answer.revision)

    # ── leaving ──────────────────────────────────────────────────────────────────────

    async def leave(self, command: c.Leave) -> Outcome | None:
        own, base = self._context.own.get(command.session), self._context.base
        if own is None or own.record is None or base is None or command.close_ms:
            return None
        mine = own.claims.get(command.n)
        if mine is None or not mine.key or not mine.token:
            return None
        if len(mine.places) != 1 or not mine.is_plain:
            return None
        place = mine.places[0]
        prefix = k.resource_prefix(place.kind, place.name)
        if prefix in self._context.busy:
            return None
        keys, owner = self._keys, Owner(*own.record[:5])
        left = Claim(
            command.session, command.n, mine.places, HOLDING, mine.rank, "", 0, 0, mine.token
        )
        writes = [mine.key]
        if mine.has_word:
            writes.append(k.word_key(command.session, command.n))
        logs = base.log_until_ms > self._instant.wall_us // 1000
        base_mod = self._context.base_mod

        def body(slot: Slot) -> Json:
            compares = [
                keys.unchanged(mine.key, mine.mod),
                keys.absent(f"{prefix}v", k.end_of(prefix)),
                keys.absent(f"{prefix}c", f"{prefix}h"),
            ]
            if logs:
                compares.append(keys.unchanged(k.EPOCH_KEY, base_mod))
            return {
                "compare": compares,
                "success": [
                    *(keys.delete(key) for key in writes),
                    *self._log(base, "released", left, owner, slot),
                ],
            }

        try:
            committed = await self._gateway.txn(
                Proposal(body, 4, frozenset(writes), 0, frozenset([prefix, k.EPOCH_KEY])),
                self._until_ms,
            )
        except LeaseGoneError:
            return None
        if not committed.answer.succeeded:
            self._context.met(prefix)
            return None
        own.left(command.n)
        own.saw(command.n)
        return Outcome(c.Done(), (), committed.answer.revision)


class _AfterJoin(Step):
    """Settles, and tells others what the join means to them."""

    joined: tuple[str, int] = ("", 0)
    """Whoever asked is told by the answer."""
    extra: Sequence[Wake] = ()

    def _decide(self, view: View) -> tuple[Reply, list[Wake]]:
        reply, all_wakes = super()._decide(view)
        wakes = [wake for wake in all_wakes if (wake.session, wake.n) != self.joined]
        told = {(wake.session, wake.n) for wake in wakes}
        for wake in self.extra:
            if (wake.session, wake.n) not in told and view.get(session_key(wake.session)):
                wakes.append(wake)
        return reply, wakes


def _is_plain(command: c.Enter) -> bool:
    if (
        command.max_hold_ms
        or command.lock_delay_ms
        or command.window_ms
        or command.block != 1
        or len(command.places) != 1
    ):
        return False
    place = command.places[0]
    if place.mode not in MODES_OF_KIND.get(place.kind, ()):
        return False
    if place.mode == PERMIT and not 1 <= place.weight <= place.limit:
        return False
    return command.value is None or len(command.value.encode()) <= LIMITS.text_max


def _blocks(place: c.Place, holders: list[tuple[Claim, Owner]]) -> bool:
    """Whether a claim of this mode cannot hold beside these."""
    row = ResourceRow(place.kind, place.name)
    return any(place_at(claim, row).mode in CONFLICTS[place.mode] for claim, _ in holders)


def _wanted(holders: list[tuple[Claim, Owner]]) -> list[Wake]:
    """Tell those who keep the resource for their next use that others want it."""
    return [
        Wake(owner.inbox, claim.session, claim.n, c.WAKE_WANTED)
        for claim, owner in holders
        if claim.block > 1
    ]
