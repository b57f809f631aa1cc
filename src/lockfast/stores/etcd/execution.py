"""The state of one command in execution, and the requests that several commands use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from lockfast.core.rows import Claim
from lockfast.errors import StoreUnavailableError
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.stored import encode
from lockfast.stores.derived.turns import Turn
from lockfast.stores.derived.view import Name
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.batches import Committed, Proposal
from lockfast.stores.etcd.errors import LeaseExistsError, LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.owned import OwnClaim, OwnSession
from lockfast.stores.etcd.requests import GRANT, KEEP_ALIVE, TIME_TO_LIVE, Answer, Known, Kv, Range
from lockfast.stores.etcd.transport import Json

READS_MAX: Final = 100
"""The maximum number of ranges per request."""
LISTINGS: Final = 2
"""How often the keys of a lease are listed before a claim counts as gone."""


class Execution:
    """One command on one wire."""

    def __init__(self, gateway: Gateway, until_ms: int, given: Instant | None = None) -> None:
        self.gateway = gateway
        self.context = gateway.context
        self.network = self.context.network
        self.keys = self.context.keys
        self.own = self.context.own
        self.until_ms = until_ms
        self._given = given
        self.instant = self.look()
        self.starts: dict[str, str] = {}
        """The starts of queues, as used by this command; see `start_of`."""

    def look(self) -> Instant:
        """Return the current instant."""
        if self._given is not None:
            return self._given
        wall_us = self.network.wall_us()
        return Instant(wall_us // 1000, wall_us)

    def start_of(self, prefix: str) -> str:
        """Return where ranges over a queue begin: the same rank in all attempts of a command."""
        return self.starts.setdefault(prefix, self.context.starts.get(prefix, ""))

    def turn(self, names: Iterable[Name], *, goes_first: bool = False) -> Turn | None:
        """Return the turn of a caller's step at the first of these resources."""
        name = next(iter(names), None)
        if name is None or not self.gateway.together:
            return None
        signal = self.gateway.transport.signal
        return Turn(self.context.turns, name, signal, self.until_ms, goes_first=goes_first)

    def is_over(self) -> bool:
        return self.network.now_ms() >= self.until_ms

    @asynccontextmanager
    async def in_turn(self, prefix: str) -> AsyncIterator[None]:
        """Enter after the caller that is finding out whether the lock is free, if there is one.

        That caller joins the queue only after its attempt to take the lock has failed. Callers of
        the same client that came later would be ahead of it.
        """
        turn = self.turn([("entering", prefix)])
        if turn is None:
            yield
            return
        try:
            with suppress(TimeoutError):
                await turn.take()
            if prefix in self.context.busy:
                turn.end()  # the others may join the queue at the same time
            yield
        finally:
            try:
                turn.end()
            except BaseException:
                turn.end()  # it was interrupted
                raise

    async def read(self, wanted: Iterable[Range]) -> Known:
        """Read all these ranges at one revision."""
        ranges, known = list(wanted), Known()
        for at in range(0, len(ranges), READS_MAX):
            part = ranges[at : at + READS_MAX]
            reads = self.keys.reads(part, known.revision)
            known.learn(part, await self.gateway.read(reads, self.until_ms))
        return known

    async def read_keys(self, *names: str) -> tuple[list[Kv | None], int]:
        """Read single keys; return them and the revision they were read at."""
        known = await self.read(map(Range, names))
        return [known.get(name) for name in names], known.revision

    async def commit(
        self, writes: list[str], compares: Sequence[str] = (), reads: Sequence[str] = ()
    ) -> Answer:
        """Execute one transaction that allocates no token, in its own request."""
        return await self.gateway.commit(writes, compares, self.until_ms, reads)

    async def propose(self, proposal: Proposal, reads: Sequence[Range]) -> Committed | Known | None:
        """Execute one transaction, possibly in the same request as those of other callers.

        If a comparison fails, return what it has read instead. Return None if it has read nothing,
        or if a lease has expired.
        """
        try:
            committed = await self.gateway.txn(proposal, self.until_ms)
        except LeaseGoneError:
            return None
        if committed.answer.succeeded:
            return committed
        known = Known()
        known.learn(reads, committed.answer)
        return known if reads else None

    async def propose_enter(
        self, own: OwnSession, claim: Claim, proposal: Proposal, reads: Sequence[Range]
    ) -> Committed | Known | None:
        """Execute a transaction that enters a claim, which is in doubt until the reply arrives."""
        doubted = own.doubt(claim.n, OwnClaim.entering(claim, own.slot_of(claim.n)))
        if doubted is None:
            return None  # it has been released: the next attempt is refused
        try:
            sent = await self.propose(proposal, reads)
        except StoreUnavailableError:
            own.undoubt(claim.n, doubted)
            raise
        if isinstance(sent, Committed):
            own.saw(claim.n)
        else:
            own.undoubt(claim.n, doubted)
        return sent

    async def call(self, path: str, **fields: Any) -> Json:
        return await self.gateway.call(path, encode(fields), self.until_ms)

    async def grant_lease(self, ttl_s: int) -> int:
        while True:
            lease = self.network.random_bits(62) + 1
            try:
                await self.call(GRANT, ID=str(lease), TTL=str(ttl_s))
            except LeaseExistsError:
                continue  # the ID is taken, perhaps by our own first attempt: draw another
            return lease

    async def keys_of_lease(self, lease: int) -> list[str]:
        """Return the keys under a lease; none if it has expired."""
        try:
            reply = await self.call(TIME_TO_LIVE, ID=str(lease), keys=True)
            return [self.keys.plain(key) for key in reply.get("keys", ())]
        except LeaseGoneError:
            return []
        except (TypeError, ValueError) as error:
            raise self.keys.malformed(error) from None

    async def keep_alive(self, lease: int) -> bool:
        """Let a lease last for its whole TTL from now on; return False if it has expired."""
        reply = await self.call(KEEP_ALIVE, ID=str(lease))
        return self.keys.number(reply, "TTL") > 0

    async def stored_claims(self, session: str, lease: int) -> list[Kv]:
        """Return a key of each claim under the lease of a session."""
        own = self.own.get(session)
        listed = await self.claims_listed(lease)
        found = (await self.read(Range(key) for key, _ in listed.values())).kvs
        stored = [found[key] for key, _ in listed.values() if key in found]
        # A claim that was granted or converted after the listing has another key now. The listing
        # may also miss a claim of ours that changed at that moment.
        moved = {slot: place for slot, (key, place) in listed.items() if key not in found}
        for n in list(own.claims) if own is not None else ():
            place = own.location(n) if own is not None else None
            if place is not None and place.slot not in listed:
                moved[place.slot] = place
        while moved:
            ranges = {slot: place.candidates() for slot, place in moved.items()}
            found = (await self.read(one for part in ranges.values() for one in part)).kvs
            nowhere: list[str] = []
            for slot, part in ranges.items():
                at = [found[one.start] for one in part if one.start in found]
                stored += at
                nowhere += [] if at else [slot]
            # A broken deadlock gives a claim another rank. One that is no longer listed has left.
            listed = await self.claims_listed(lease) if nowhere else {}
            moved = {slot: listed[slot][1] for slot in nowhere if slot in listed}
        return stored

    async def claims_listed(self, lease: int) -> dict[str, tuple[str, k.PlaceKey]]:
        """Return a key of each claim under a lease, as it is and parsed, by the claim's slot."""
        keys = [key for key in await self.keys_of_lease(lease) if key[:1] == "n"]
        places = {key: k.parse_place(key) for key in keys}
        return {place.slot: (key, place) for key, place in places.items() if place.is_claim}

    async def locate(self, session: str, n: int) -> k.PlaceKey | None:
        """Find a claim of any process among those of its session.

        A grant deletes one key and puts another, and a list made in between has neither. Each
        read waits for the transactions that were being applied, so the next list has it.
        """
        for _ in range(LISTINGS):
            (stored,), _ = await self.read_keys(k.session_key(session))
            if stored is None:
                return None
            for kv in await self.stored_claims(session, stored.lease):
                place = k.parse_place(kv.key)
                claim, _ = k.claim_from(place, kv)
                if claim.n == n:
                    return place._replace(rank=claim.rank)
        return None

    async def resolve_doubt(self, session: str, n: int) -> None:
        """Determine the outcome of an enter whose reply was lost, before its number is used again.

        The claim may be waiting in the queue, may have been granted by a release since, or its
        request may still be in flight. One transaction rewrites the session's key, so that the
        request can no longer succeed (every enter compares that key), and reads the keys that the
        claim can have. What it finds is final.

        Raises OutcomeUnknownError or StoreUnavailableError if the claim is still in doubt.
        """
        own, keys, key = self.own.get(session), self.keys, k.session_key(session)
        if own is None or own.record is None or n not in own.doubted:
            return
        record, mod, location = own.record, own.mod, own.location(n)
        wanted = location.candidates() if location is not None else []
        fence = keys.put(key, encode(list(record)), record.lease)
        while True:
            writes, compares = [*keys.reads(wanted), fence], [keys.unchanged(key, mod)]
            try:
                answer = await self.commit(writes, compares, keys.reads([Range(key)]))
            except LeaseGoneError:
                return  # nothing can commit under an expired lease; the step reports the end
            if answer.succeeded:
                break
            stored = answer.found(0).kvs
            if not stored or n not in own.doubted:
                return
            if k.read(k.Record, stored[0]).home != own.home:
                own.leave_home()
                return
            mod = stored[0].mod
        own.mod = max(own.mod, answer.revision)
        known = Known()
        known.learn(wanted, answer)
        for kv in known.kvs.values():
            place = k.parse_place(kv.key)
            claim, _ = k.claim_from(place, kv)
            if claim.n == n:
                own.note(claim, place.slot, kv.mod)
                break
        else:
            # A deadlock may have been broken by giving the claim another rank.
            moved = await self.locate(session, n) if location is not None else None
            own.moved(n, moved.rank if moved is not None else None)
        own.doubted.discard(n)
