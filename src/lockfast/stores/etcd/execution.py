"""One command being executed: what every step of it needs, and the requests that several use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lockfast.core.commands import Reply, Wake
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseExistsError, LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.owned import Location, OwnSessions
from lockfast.stores.etcd.requests import GRANT, TIME_TO_LIVE, Answer, Known, Kv, Range
from lockfast.stores.etcd.transport import Json

READS_MAX: Final = 100
"""Ranges that one request reads."""
BUSY_MAX: Final = 10_000


class Instant(NamedTuple):
    """What the clocks say."""

    now_ms: int
    wall_us: int
    by_lease: bool = True
    """Sessions and closings end with their leases, whatever clocks say. Tests that compare the
    store with the table set this to False and end leases by their own clock."""


class Outcome(NamedTuple):
    """What became of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()
    revision: int = 0


class Context:
    """What all commands of one store object share. None of it needs to be true: whatever relies
    on it compares it."""

    def __init__(self, own: OwnSessions, lease_s: Callable[[int], int]) -> None:
        self.own = own
        self.lease_s = lease_s
        """The TTL of a lease for a span of milliseconds."""
        self.remembering: tuple[int, int] | None = None
        """The lease for tombstones, and when it was granted."""
        self.base: Base | None = None
        self.base_kv: Kv | None = None
        """The base of tokens as last read, and as it is stored."""
        self.busy: dict[str, int] = {}
        """Resources that are held, as far as we know, and how many waited there."""

    def met(self, prefix: str, waiting: int) -> None:
        if len(self.busy) > BUSY_MAX:
            self.busy.clear()
        self.busy[prefix] = waiting

    def deliver(self, wakes: Iterable[Wake]) -> None:
        """Wake the sessions of this process, after the commit."""
        for wake in wakes:
            session = self.own.get(wake.session)
            if session is not None and session.deliver is not None:
                session.deliver(wake)


class Execution:
    """One command on one wire."""

    def __init__(
        self, gateway: Gateway, context: Context, until_ms: int, given: Instant | None = None
    ) -> None:
        self.gateway = gateway
        self.network = gateway.network
        self.keys = gateway.keys
        self.context = context
        self.own = context.own
        self.until_ms = until_ms
        self._given = given
        self.instant = self.look()

    def look(self) -> Instant:
        """The instant now."""
        if self._given is not None:
            return self._given
        wall_us = self.network.wall_us()
        return Instant(wall_us // 1000, wall_us)

    def is_over(self) -> bool:
        return self.network.now_ms() >= self.until_ms

    async def read(self, wanted: Iterable[Range]) -> Known:
        """Read everything wanted at one revision."""
        ranges, known = list(wanted), Known()
        for at in range(0, len(ranges), READS_MAX):
            part = ranges[at : at + READS_MAX]
            reads = self.keys.reads(part, known.revision)
            known.learn(part, await self.gateway.read(reads, self.until_ms))
        return known

    async def read_keys(self, *names: str) -> tuple[list[Kv | None], int]:
        """Single keys, and the revision they were read at."""
        known = await self.read(map(Range, names))
        return [known.get(name) for name in names], known.revision

    async def commit(
        self, writes: list[str], compares: Sequence[str] = (), reads: Sequence[str] = ()
    ) -> Answer:
        """Carry out one transaction that gives no token, in a request of its own."""
        return await self.gateway.commit(writes, compares, self.until_ms, reads)

    async def call(self, path: str, **fields: Any) -> Json:
        return await self.gateway.call(path, k.encode(fields), self.until_ms)

    async def grant_lease(self, ttl_s: int) -> int:
        while True:
            lease = self.network.random_bits(62) + 1
            try:
                await self.call(GRANT, ID=str(lease), TTL=str(ttl_s))
            except LeaseExistsError:
                continue  # a retry met its own first try, or another's: take a new one
            return lease

    async def keys_of_lease(self, lease: int) -> list[str]:
        """The keys under a lease; none if it is over."""
        try:
            reply = await self.call(TIME_TO_LIVE, ID=str(lease), keys=True)
            return [self.keys.plain(key) for key in reply.get("keys", ())]
        except LeaseGoneError:
            return []
        except (TypeError, ValueError) as error:
            raise self.keys.malformed(error) from None

    async def locate(self, session: str, n: int) -> Location | None:
        """Where a claim of any process stands: among the keys of its session's lease."""
        (stored,), _ = await self.read_keys(k.session_key(session))
        if stored is None:
            return None
        for key in await self.keys_of_lease(stored.lease):
            if key[:1] == "n" and key.endswith(f"\x1f{session}\x1f{n}"):
                place = k.parse_place(key)
                if place.rank:
                    return Location(place.kind, place.name, place.rank)
        return None

    async def resolve_doubt(self, session: str, n: int) -> None:
        """Find out what became of an enter whose reply was lost, before its number is used again.

        The claim may stand in line, may have been granted by whoever left since, or its request
        may still be on its way. One transaction writes the session's key anew, so that the
        request cannot be carried out any more (every enter compares that key), and reads the
        keys that the claim can have. What it finds is final.

        Raises OutcomeUnknownError or StoreUnavailableError if the claim is still in doubt.
        """
        own, keys, key = self.own.get(session), self.keys, k.session_key(session)
        if own is None or own.record is None or n not in own.doubted:
            return
        record, mod, location = own.record, own.mod, own.location(n)
        wanted = location.candidates(session, n) if location is not None else []
        fence = keys.put(key, k.encode(list(record)), record.lease)
        while n in own.doubted:
            writes, compares = [*keys.reads(wanted), fence], [keys.unchanged(key, mod)]
            try:
                answer = await self.commit(writes, compares, keys.reads([Range(key)]))
            except LeaseGoneError:
                return  # nothing can be carried out under that lease; the step finds it ended
            if answer.succeeded:
                break
            stored = answer.found(0).kvs
            if not stored:
                return
            mod = stored[0].mod
        else:
            return
        own.mod = max(own.mod, answer.revision)
        known = Known()
        known.learn(wanted, answer)
        for kv in known.kvs.values():
            claim, _ = k.claim_from(k.parse_place(kv.key), kv)
            own.note(claim, kv.mod)
            break
        else:
            # Breaking a deadlock may have given it another rank.
            moved = await self.locate(session, n) if location is not None else None
            own.moved(n, moved.rank if moved is not None else None)
        own.doubted.discard(n)
