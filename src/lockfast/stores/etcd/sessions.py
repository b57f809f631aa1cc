"""The life of a session: its lease, its keep-alives, its end.

Opening a session grants a lease and puts the session's key under it. Ending a session first deletes
its key: every enter and every grant compares it, so from then on no key can be added under the
lease. Then the lease is revoked, which deletes all its keys in one revision. A client that dies in
between leaves a session that can do nothing, not even renew, until its lease expires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from lockfast.core import commands as c
from lockfast.core.commands import Reply, Wake
from lockfast.core.reasons import EXPIRED, UNKNOWN_SESSION
from lockfast.core.table import why_too_large
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.derived.endings import Ending
from lockfast.stores.derived.steps import LIMITS, Outcome
from lockfast.stores.derived.stored import encode
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.execution import READS_MAX, Execution
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.owned import OwnSession
from lockfast.stores.etcd.requests import REVOKE, Kv, Range
from lockfast.stores.etcd.steps import Step, run, settle

REMEMBERED_S: Final = 1200
"""The TTL of the lease for tombstones, which is replaced after half of it."""
EPOCH_LAG_US: Final = 1_000_000
"""How far tokens may lag behind the wall clock before opening a session raises the epoch."""
PROVED_PER_RENEWAL: Final = 64


class Sessions:
    """Opens, renews and ends sessions."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._keys = execution.keys
        self._context = execution.context
        self._own = execution.own

    # ── opening ──────────────────────────────────────────────────────────────────────

    async def open(self, session: str, command: c.Open | None) -> Reply:
        """Open a session, or become the home of one that is open."""
        own, keys = self._own.begin(session), self._keys
        names = (k.session_key(session), k.ended_key(session), k.EPOCH_KEY)
        while True:
            # Read before the request: another thread may open the session just after it.
            was_opened = own.was_opened or own.times_moved > 0
            (stored, tomb, epoch), revision = await self._execution.read_keys(*names)
            base = k.base_from(keys.label, epoch)
            if stored is not None:
                if await self._become_home(own, stored):
                    return c.Done(found=True)
                continue
            if tomb is not None or was_opened or command is None:
                own.ended = own.ended or tomb is not None or was_opened
                return ended_reply(tomb, was_opened=was_opened)
            refused = why_too_large(command, LIMITS.text_max)
            if refused is not None:
                return refused
            instant = self._execution.look()
            ttl_s = self._context.lease_s(command.ttl_ms)
            lease = await self._execution.grant_lease(ttl_s)
            record = k.Record(
                lease, command.ttl_ms, command.owner, command.process, command.inbox,
                command.metadata, instant.now_ms, own.home,
            )  # fmt: skip
            alive = k.Alive(0, instant.now_ms)
            writes = [
                keys.put(names[0], encode(list(record)), lease),
                keys.put(k.alive_key(session), encode(list(alive)), lease),
            ]
            raised = raised_base(base, revision, instant.wall_us, EPOCH_LAG_US)
            if raised != base:
                writes.append(keys.put(k.EPOCH_KEY, encode(list(raised))))
            compares = [*map(keys.absent, names[:2]), keys.same(k.EPOCH_KEY, epoch)]
            try:
                answer = await self._execution.commit(writes, compares)
            except (LeaseGoneError, OutcomeUnknownError):
                if self._execution.is_over():
                    raise StoreUnavailableError(
                        keys.label, "did not open the session in time"
                    ) from None
                continue  # read again: this transaction may have opened the session
            if answer.succeeded:
                own.record, own.mod = record, answer.revision
                stored = Kv(k.EPOCH_KEY, encode(list(raised)), answer.revision)
                self._context.base = k.KnownBase(raised, stored)
                return c.Done(found=False)

    async def open_once(self, session: str, command: c.Open | None = None) -> Reply:
        """Open a session, or become its home, once, even if several callers need it."""
        execution = self._execution
        reply = await self._own.begin(session).open_once(
            self._keys.label,
            lambda: self.open(session, command),
            execution.gateway.transport.signal,
            lambda: execution.until_ms - execution.network.now_ms(),
        )
        return reply if reply is not None else c.Done()

    async def adopt(self, session: str) -> None:
        """Become the home of a session that another store object has opened, if there is one."""
        (stored,), _ = await self._execution.read_keys(k.session_key(session))
        if stored is not None:
            await self.open_once(session)

    async def _become_home(self, own: OwnSession, stored: Kv) -> bool:
        """Make this store object the home of a session; return False if its key has changed."""
        keys, record, mod = self._keys, k.read(k.Record, stored), stored.mod
        if record.home != own.home:
            record = record._replace(home=own.home)
            write = keys.put(stored.key, encode(list(record)), record.lease)
            try:
                answer = await self._execution.commit([write], [keys.unchanged(stored.key, mod)])
            except (LeaseGoneError, OutcomeUnknownError):
                return False  # the caller reads the key again
            if not answer.succeeded:
                return False
            mod = answer.revision
        if not own.was_opened:
            # From here on nobody else adds claims, so these are all.
            for kv in await self._execution.stored_claims(own.id, record.lease):
                place = k.parse_place(kv.key)
                own.note(k.claim_from(place, kv)[0], place.slot, kv.mod)
        own.record, own.mod = record, mod
        return True

    # ── renewing ─────────────────────────────────────────────────────────────────────

    async def renew(self, command: c.Renew) -> Outcome:
        if self._own.get(command.session) is None:
            await self.adopt(command.session)
        own = self._own.get(command.session)
        if own is not None and own.record is not None:
            if not await self._execution.keep_alive(own.record.lease):
                own.ended = True
            else:
                self._own.renewed(own)
                await self._prove(own)
        outcome = await run(self._execution, command)
        if own is not None and own.has_words and command.lowest:
            await self._drop_words(own, command.lowest)
        return outcome

    async def _prove(self, own: OwnSession) -> None:
        """Check that the keys of our claims exist, a limited number per call."""
        claims = sorted(own.claims.items())
        after = [item for item in claims if item[0] > own.proved_up_to] or claims
        chosen = [(n, claim) for n, claim in after[:PROVED_PER_RENEWAL] if n not in own.doubted]
        if not chosen:
            return
        own.proved_up_to = chosen[-1][0] if len(after) > PROVED_PER_RENEWAL else 0
        names = {n: claim.keys()[0] for n, claim in chosen}
        known = await self._execution.read(map(Range, names.values()))
        for n, claim in chosen:
            if known.get(names[n]) is not None or own.claims.get(n) is not claim:
                continue
            reply = (await Step(self._execution, c.Look(own.id, n)).run()).reply
            if isinstance(reply, c.Gone) and own.claims.get(n) is claim:
                own.left(n)

    async def _drop_words(self, own: OwnSession, lowest: int) -> None:
        start, stop = k.word_key(own.id, own.words_from), k.word_key(own.id, lowest)
        own.has_words = False
        await self._execution.commit([self._keys.delete(start, stop)])
        own.words_from = max(own.words_from, lowest)

    # ── ending ───────────────────────────────────────────────────────────────────────

    async def end(self, endings: Sequence[Ending], places: Iterable[c.Place] = ()) -> Outcome:
        """End sessions, then grant what can be granted at their resources and at `places`.

        The reply says whether any of them was still open.
        """
        records = [await self._take_life(ending) for ending in endings]
        to_settle = dict.fromkeys(c.Place(place.kind, place.name, "") for place in places)
        wakes: list[Wake] = []
        for ending, record in zip(endings, records, strict=True):
            own = self._own.peek(ending.session)
            if own is not None:
                own.ended = True
            if record is not None:
                if ending.what != "released":
                    wakes.append(Wake(record.inbox, ending.session, 0, c.WAKE_ENDED))
                to_settle.update(dict.fromkeys(await self._bury(ending, record)))
        self._own.deliver(wakes)
        outcome = Outcome(c.Done(any(record is not None for record in records)), wakes)
        return outcome.followed_by(
            await settle(self._execution, await self._in_use(list(to_settle)))
        )

    async def _take_life(self, ending: Ending) -> k.Record | None:
        """Delete a session's key and write a tombstone; return None if it had already ended.

        If it is ours and not open yet, the tombstone prevents that it is opened.
        """
        keys, session = self._keys, ending.session
        own, names = self._own.peek(session), (k.session_key(session), k.alive_key(session))
        record = k.Record(0, 0, "", "", "", "", 0)
        while True:
            (stored, alive), _ = await self._execution.read_keys(*names)
            if stored is not None:
                record = k.read(k.Record, stored)
            elif own is None or own.was_opened or own.ended:
                return None
            renewals = k.alive_from(alive, 0).renewals
            if stored is not None and ending.renewals not in (None, renewals):
                return None
            compares = [keys.same_revision(names[0], stored)]
            if ending.renewals is not None:
                compares.append(keys.same_revision(names[1], alive))
            tomb = k.Tombstone(ending.reason, ending.by, ending.what, record, renewals)
            writes = [
                keys.delete(names[0]),
                keys.delete(k.watching_key(session)),
                keys.put(k.ended_key(session), encode(list(tomb)), await self._remembering()),
            ]
            try:
                answer = await self._execution.commit(writes, compares)
            except LeaseGoneError:
                self._context.remembering = None
                continue
            if answer.succeeded:
                return record if stored is not None else None

    async def _remembering(self) -> int:
        now_ms = self._execution.network.now_ms()
        found = self._context.remembering
        if found is None or now_ms - found[1] > REMEMBERED_S * 500:
            lease = await self._execution.grant_lease(REMEMBERED_S)
            self._context.remembering = found = (lease, now_ms)
        return found[0]

    async def _bury(self, ending: Ending, record: k.Record) -> list[c.Place]:
        """Revoke the lease of a session whose key is deleted; return the places of its claims."""
        places: dict[c.Place, None] = {}
        delays: list[str] = []
        for key in await self._execution.keys_of_lease(record.lease):
            if key[:1] == "n":
                place = k.parse_place(key)
                if not place.session:
                    continue  # the start of a queue
                places[c.Place(place.kind, place.name, "")] = None
                prefix = k.resource_prefix(place.kind, place.name)
                delays.append(k.place_key(prefix, "d", place.session, place.slot))
        if ending.what == "released":
            for at in range(0, len(delays), READS_MAX):
                await self._execution.commit(
                    [self._keys.delete(key) for key in delays[at : at + READS_MAX]]
                )
        with suppress(LeaseGoneError):
            await self._execution.call(REVOKE, ID=str(record.lease))
        return list(places)

    async def _in_use(self, places: list[c.Place]) -> list[c.Place]:
        """Return those of these resources that still have keys."""
        prefixes = [k.resource_prefix(place.kind, place.name) for place in places]
        ranges = [Range(prefix, k.end_of(prefix), 1) for prefix in prefixes]
        known = await self._execution.read(ranges)
        return [place for place, one in zip(places, ranges, strict=True) if known.found[one].count]

    # ── watching ─────────────────────────────────────────────────────────────────────

    async def watch(self, command: c.Watch) -> Reply:
        """Turn a session's notifications about logged events on or off."""
        keys, session = self._keys, command.session
        names = (k.session_key(session), k.ended_key(session))
        while True:
            (stored, tomb), _ = await self._execution.read_keys(*names)
            if stored is None:
                return ended_reply(tomb, was_opened=self._own.get(session) is not None)
            key = k.watching_key(session)
            write = keys.put(key, "", stored.lease) if command.on else keys.delete(key)
            compares = [keys.unchanged(stored.key, stored.mod)]
            if (await self._execution.commit([write], compares)).succeeded:
                return c.Done()


def ended_reply(tomb: Kv | None, *, was_opened: bool) -> c.Ended:
    """Return the reply about a session that is not stored."""
    if tomb is None:
        return c.Ended(EXPIRED if was_opened else UNKNOWN_SESSION)
    found: k.Tombstone = k.read(k.Tombstone, tomb)
    return c.Ended(found.reason, found.by)


def raised_base(base: Base | None, revision: int, wall_us: int, lag_us: int) -> Base:
    """Return the base, its epoch raised if tokens lag the wall clock by more than `lag_us`."""
    epoch = max(0, wall_us - k.STRIDE * (revision + 1))
    if base is None:
        return Base(epoch)
    return base._replace(epoch=epoch) if epoch > base.epoch + lag_us else base
