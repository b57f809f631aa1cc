"""The life of a session: its lease, its keep-alives, its end.

Opening grants a lease and puts the session's key under it. To end a session its key is deleted
first: every enter and every grant compares it, so from then on nothing new can come under the
lease. Then the lease is revoked, which deletes all its keys in one revision. Whoever does this and
dies in between leaves a session that can do nothing, not even renew, until its lease is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core.commands import Reply, Wake
from lockfast.core.reasons import CLOSED, EXPIRED, UNKNOWN_SESSION, revoked
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.requests import KEEP_ALIVE, REVOKE, Kv, Range
from lockfast.stores.etcd.steps import (
    LIMITS,
    READS_MAX,
    Context,
    Outcome,
    Step,
    deliver_all,
    grant_lease,
    keys_of_lease,
    settle,
)
from lockfast.stores.etcd.view import Instant

REMEMBERED_S: Final = 1200
"""The lease that tombstones are under; it is replaced when half of it is over."""
EPOCH_LAG_US: Final = 1_000_000
"""The epoch is raised when a session opens and tokens are this far behind the wall clock."""
PROVED_PER_RENEWAL: Final = 64


class Ending(NamedTuple):
    """A session to be ended."""

    session: str
    reason: str
    what: str
    """How its claims are logged."""
    by: str = ""
    renewals: int | None = None
    """End it only if it was renewed this often."""


def ending_of(command: c.Close | c.Expel | c.RevokeSession) -> Ending:
    if isinstance(command, c.Close):
        return Ending(command.session, CLOSED, "released")
    if isinstance(command, c.Expel):
        return Ending(command.session, command.reason, "expired", "", command.renewals)
    return Ending(command.session, revoked(command.reason), "revoked", command.by)


class Sessions:
    """Opens, renews and ends sessions over one gateway."""

    def __init__(
        self, gateway: Gateway, context: Context, until_ms: int, instant: Instant | None = None
    ) -> None:
        self._gateway = gateway
        self._keys = gateway.keys
        self._context = context
        self._own = context.own
        self._until_ms = until_ms
        self._instant = instant

    def _now(self) -> Instant:
        wall_us = self._gateway.network.wall_us()
        return self._instant or Instant(wall_us // 1000, wall_us)

    async def _read(self, *names: str) -> tuple[list[Kv | None], int]:
        answer = await self._gateway.read(
            self._keys.reads(Range(name) for name in names), self._until_ms
        )
        found = [answer.found(i).kvs for i in range(len(names))]
        return [kvs[0] if kvs else None for kvs in found], answer.revision

    # ── opening ──────────────────────────────────────────────────────────────────────

    async def open(self, command: c.Open) -> Reply:
        session, keys = command.session, self._keys
        own = self._own.begin(session)
        names = (k.session_key(session), k.ended_key(session), k.EPOCH_KEY)
        while True:
            # Asked before the read: another thread may open the session just after it.
            was_opened = own.was_opened
            (stored, tomb, epoch), revision = await self._read(*names)
            base = k.base_from(keys.label, epoch)
            if stored is not None:
                self._adopt(own, stored)
                return c.Done(found=True)
            if tomb is not None:
                own.ended = True
                ended = k.typed(k.Tombstone, k.decode(tomb.value))
                return c.Ended(ended.reason, ended.by)
            if was_opened:
                own.ended = True
                return c.Ended(EXPIRED)
            for what, text in (("owner", command.owner), ("metadata", command.metadata)):
                size = len(text.encode())
                if size > LIMITS.text_max:
                    return c.Refused(c.WHY_TOO_LARGE, what, size, LIMITS.text_max)
            instant = self._now()
            ttl_s = self._context.lease_s(command.ttl_ms)
            lease = await grant_lease(self._gateway, ttl_s, self._until_ms)
            record = k.Record(
                lease, command.ttl_ms, command.owner, command.process, command.inbox,
                command.metadata, instant.now_ms,
            )  # fmt: skip
            alive = k.Alive(0, instant.now_ms)
            writes = [
                keys.put(names[0], k.encode(list(record)), lease),
                keys.put(k.alive_key(session), k.encode(list(alive)), lease),
            ]
            raised = raised_base(base, revision, instant.wall_us, EPOCH_LAG_US)
            if raised != base:
                writes.append(keys.put(k.EPOCH_KEY, k.encode(list(raised))))
            compares = [
                keys.absent(names[0]),
                keys.absent(names[1]),
                keys.same(k.EPOCH_KEY, epoch),
            ]
            try:
                answer = await self._gateway.commit(writes, compares, self._until_ms)
            except (LeaseGoneError, OutcomeUnknownError):
                if self._gateway.network.now_ms() >= self._until_ms:
                    raise StoreUnavailableError(
                        keys.label, "did not open the session in time"
                    ) from None
                continue  # read again: this transaction may have opened it
            if answer.succeeded:
                own.record, own.mod = record, answer.revision
                return c.Done(found=False)

    @staticmethod
    def _adopt(own: OwnSession, stored: Kv) -> None:
        own.record, own.mod = k.typed(k.Record, k.decode(stored.value)), stored.mod

    # ── renewing ─────────────────────────────────────────────────────────────────────

    async def renew(self, command: c.Renew) -> Outcome:
        own = self._own.get(command.session)
        if own is not None and own.record is not None:
            if not await self._keep_alive(own.record.lease):
                own.ended = True
            else:
                await self._prove(own)
        step = Step(self._gateway, self._context, command, self._until_ms, self._instant)
        outcome = await step.run()
        wakes = [*outcome.wakes, *await self._settle(step.unsettled)]
        if own is not None and own.has_words and command.lowest:
            await self._drop_words(own, command.lowest)
        return outcome._replace(wakes=wakes)

    async def _keep_alive(self, lease: int) -> bool:
        reply = await self._gateway.call(KEEP_ALIVE, k.encode({"ID": str(lease)}), self._until_ms)
        return self._keys.number(reply, "TTL") > 0

    async def _prove(self, own: OwnSession) -> None:
        """Check that the keys of our claims exist, a few of them at each call."""
        claims = sorted(own.claims.items())
        after = [item for item in claims if item[0] > own.proved_up_to] or claims
        chosen = [(n, claim) for n, claim in after[:PROVED_PER_RENEWAL] if n not in own.doubted]
        if not chosen:
            return
        own.proved_up_to = chosen[-1][0] if len(after) > PROVED_PER_RENEWAL else 0
        reads = []
        for n, claim in chosen:
            place = claim.places[0]
            prefix = k.resource_prefix(place.kind, place.name)
            key = k.line_key(prefix, "w", claim.rank, own.id, n)
            if claim.token:
                key = k.holder_key(prefix, place.mode, claim.rank, own.id, n)
            reads.append(Range(key))
        answer = await self._gateway.read(self._keys.reads(reads), self._until_ms)
        for i, (n, claim) in enumerate(chosen):
            if answer.found(i).kvs or own.claims.get(n) is not claim:
                continue
            look = c.Look(own.id, n)
            step = Step(self._gateway, self._context, look, self._until_ms, self._instant)
            reply = (await step.run()).reply
            if own.claims.get(n) is not claim:
                continue
            if isinstance(reply, c.Gone):
                own.left(n)

    async def _drop_words(self, own: OwnSession, lowest: int) -> None:
        start, stop = k.words_prefix(own.id), k.word_key(own.id, lowest)
        own.has_words = False
        await self._gateway.commit([self._keys.delete(start, stop)], (), self._until_ms)

    async def _settle(self, places: Iterable[c.Place]) -> list[Wake]:
        return await settle(self._gateway, self._context, places, self._until_ms, self._instant)

    # ── ending ───────────────────────────────────────────────────────────────────────

    async def end(
        self, endings: Sequence[Ending], places: Iterable[c.Place] = ()
    ) -> tuple[list[bool], list[Wake]]:
        """End sessions; then grant what they held, and what can be granted at `places`.

        Says of each session whether this call has ended it.
        """
        records = [await self._take_life(ending) for ending in endings]
        to_settle = dict.fromkeys(c.Place(place.kind, place.name, "") for place in places)
        wakes: list[Wake] = []
        for ending, record in zip(endings, records, strict=True):
            own = self._own.get(ending.session)
            if own is not None:
                own.ended = True
            if record is not None:
                if ending.what != "released":
                    wakes.append(Wake(record.inbox, ending.session, 0, c.WAKE_ENDED))
                to_settle.update(dict.fromkeys(await self._bury(ending, record)))
        deliver_all(self._own, wakes)
        wakes += await self._settle(await self._in_use(list(to_settle)))
        return [record is not None for record in records], wakes

    async def _take_life(self, ending: Ending) -> k.Record | None:
        """Delete a session's key and leave word why; None if it is over already."""
        keys, session = self._keys, ending.session
        names = (k.session_key(session), k.alive_key(session))
        while True:
            (stored, alive), _ = await self._read(*names)
            if stored is None:
                if await self._forbid(ending):
                    return None
                continue
            record: k.Record = k.typed(k.Record, k.decode(stored.value))
            renewals = 0
            if alive is not None:
                renewals = k.typed(k.Alive, k.decode(alive.value)).renewals
            if ending.renewals not in (None, renewals):
                return None
            tomb = k.Tombstone(ending.reason, ending.by, ending.what, record, renewals)
            lease = await self._remembering()
            compares = [keys.unchanged(stored.key, stored.mod)]
            if ending.renewals is not None and alive is not None:
                compares.append(keys.unchanged(alive.key, alive.mod))
            writes = [
                keys.delete(names[0]),
                keys.delete(k.watching_key(session)),
                keys.put(k.ended_key(session), k.encode(list(tomb)), lease),
            ]
            try:
                answer = await self._gateway.commit(writes, compares, self._until_ms)
            except LeaseGoneError:
                self._context.remembering = None
                continue
            if answer.succeeded:
                return record

    async def _forbid(self, ending: Ending) -> bool:
        """Have a session of ours never opened, if that is under way; False: it is open now."""
        own, keys, session = self._own.get(ending.session), self._keys, ending.session
        if own is None or own.was_opened or own.ended:
            return True
        tomb = k.Tombstone(
            ending.reason, ending.by, ending.what, k.Record(0, 0, "", "", "", "", 0), 0
        )
        lease = await self._remembering()
        write = keys.put(k.ended_key(session), k.encode(list(tomb)), lease)
        compare = keys.absent(k.session_key(session))
        try:
            answer = await self._gateway.commit([write], [compare], self._until_ms)
        except LeaseGoneError:
            self._context.remembering = None
            return False
        return answer.succeeded

    async def _remembering(self) -> int:
        now_ms = self._gateway.network.now_ms()
        found = self._context.remembering
        if found is None or now_ms - found[1] > REMEMBERED_S * 500:
            lease = await grant_lease(self._gateway, REMEMBERED_S, self._until_ms)
            self._context.remembering = found = (lease, now_ms)
        return found[0]

    async def _bury(self, ending: Ending, record: k.Record) -> list[c.Place]:
        """Revoke the lease of a session whose key is gone; returns where its claims stood."""
        places: dict[c.Place, None] = {}
        delays: list[str] = []
        for key in await keys_of_lease(self._gateway, record.lease, self._until_ms):
            if key[:1] == "n":
                place = k.parse_place(key)
                places[c.Place(place.kind, place.name, "")] = None
                prefix = k.resource_prefix(place.kind, place.name)
                delays.append(k.delay_key(prefix, place.session, place.n))
        own = self._own.get(ending.session)
        if ending.what == "released" and (own is None or own.uses_lock_delay):
            for at in range(0, len(delays), READS_MAX):
                part = delays[at : at + READS_MAX]
                deletes = [self._keys.delete(key) for key in part]
                await self._gateway.commit(deletes, (), self._until_ms)
        try:
            await self._gateway.call(REVOKE, k.encode({"ID": str(record.lease)}), self._until_ms)
        except LeaseGoneError:
            pass
        return list(places)

    async def _in_use(self, places: list[c.Place]) -> list[c.Place]:
        """Of these resources, those that have any keys left."""
        found: list[c.Place] = []
        for at in range(0, len(places), READS_MAX):
            part = places[at : at + READS_MAX]
            prefixes = [k.resource_prefix(place.kind, place.name) for place in part]
            reads = self._keys.reads(Range(p, k.end_of(p), 1) for p in prefixes)
            answer = await self._gateway.read(reads, self._until_ms)
            found += [place for i, place in enumerate(part) if answer.found(i).count]
        return found

    # ── watching ─────────────────────────────────────────────────────────────────────

    async def watch(self, command: c.Watch) -> Reply:
        """Have a session told of what is logged, or no longer."""
        keys, session = self._keys, command.session
        names = (k.session_key(session), k.ended_key(session))
        while True:
            (stored, tomb), _ = await self._read(*names)
            if stored is None:
                if tomb is not None:
                    ended = k.typed(k.Tombstone, k.decode(tomb.value))
                    return c.Ended(ended.reason, ended.by)
                own = self._own.get(session)
                was_opened = own is not None and own.was_opened
                return c.Ended(EXPIRED if was_opened else UNKNOWN_SESSION)
            key = k.watching_key(session)
            write = keys.put(key, "", stored.lease) if command.on else keys.delete(key)
            compares = [keys.unchanged(stored.key, stored.mod)]
            if (await self._gateway.commit([write], compares, self._until_ms)).succeeded:
                return c.Done()


def raised_base(base: Base | None, revision: int, wall_us: int, lag_us: int) -> Base:
    """The base with its epoch raised so far that tokens are not behind the wall clock."""
    epoch = max(0, wall_us - k.STRIDE * (revision + 1))
    if base is None:
        return Base(epoch)
    return base._replace(epoch=epoch) if epoch > base.epoch + lag_us else base
