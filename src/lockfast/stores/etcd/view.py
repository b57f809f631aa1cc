"""The table's rows as one step sees and changes them, over what is known of the keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.checksum import checksum_of
from lockfast.core.commands import HOLDING, REVOKED, Event
from lockfast.core.rows import Claim, Meta, ResourceRow, Row, Session
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.stores.etcd.knowledge import Knowledge, Missing, Want
from lockfast.stores.etcd.requests import Kv
from lockfast.stores.etcd.rows import (
    RELATIVE,
    Living,
    Owner,
    Record,
    alone_prefix,
    claim_from,
    decode,
    end_of,
    is_line,
    living_key,
    marker_of,
    record_key,
    resource_alone,
    resource_from,
    resource_of,
    session_from,
    stored_key,
    table_key,
    waiting_of,
)

READ_AT_ONCE: Final = 500
READ_TOGETHER: Final = 100
"""Keys that one transaction reads."""
AT_ONCE: Final = 12
"""Claims that end in one transaction; the rest follows in others."""

DUE_PER_CLAIM: Final = 6
"""Most of what is due is soon done: an ended session to be forgotten, a lock that opens."""


class View:
    """The row port of the table, for one command at one instant.

    Reading what is not known raises Missing: it is read, and the command begins anew.
    """

    def __init__(
        self,
        known: Knowledge,
        command: c.Command,
        now_ms: int,
        *,
        arrival: int,
        due_ms: int,
        by_lease: bool = True,
        exact: bool = True,
        at_once: int = AT_ONCE,
    ) -> None:
        self.known = known
        self.command = command
        self.now_ms = now_ms
        self.by_lease = by_lease
        """Sessions end with their leases; else (to be compared) at their deadlines."""
        self.exact = exact
        """Others' sessions have to be as they are, not as their claims say they were."""
        self.at_once = at_once
        self.account: tuple[int, int] | None = None
        """Count and checksum of the claims of the command's session, if they matter."""
        self.finished: Collection[int] = ()
        """Numbers of the command's session that must not come again."""
        self.is_where_it_says = bool(getattr(command, "places", ()))
        """The command's own claim is at its places, if it is anywhere."""
        self.meta = Meta(RELATIVE - 1, arrival, due_ms, 0)
        self.changes: dict[str, Row | None] = {}
        self.log: list[Event] = []
        self.owners: dict[str, Owner] = {}
        self.approximate: set[str] = set()
        self.touched: dict[str, tuple[Any, ...] | None] = {}
        """Resources read, as they were before."""
        self.consumed: dict[str, str] = {}
        """Of waiting lines read from their heads: how far."""
        self.unfinished: set[str] = set()
        """Sessions with more claims than one transaction can end."""
        self.alone: set[str] = set()
        """Claims that have no row of their own: their resources' rows have them."""
        self._live: dict[str, Any] = {}
        self._carried: dict[str, tuple[Claim, Owner]] = {}

    # ── the row port ─────────────────────────────────────────────────────────────────

    logs = True

    def get(self, key: str) -> Any:
        if key == r.META_KEY:
            return self.meta
        if key in self.changes:
            return self.changes[key]
        if key not in self._live:
            self._live[key] = self._read(key)
        return self._live[key]

    def put(self, key: str, row: Row) -> None:
        if key == r.META_KEY:
            return
        if key[0] == "d" and self.by_lease and self._is_end_of_living(key):
            return  # etcd ends it
        self.changes[key] = row
        if isinstance(row, Claim) and row.state == HOLDING and len(row.places) == 1:
            # Its copy among the holders changes too.
            self.get(r.resource_key(*row.places[0][:2]))

    def add(self, key: str, row: Row) -> None:
        self.put(key, row)

    def delete(self, key: str) -> None:
        self.changes[key] = None

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        if start[0] == "s":
            return self._sessions(start, limit)
        if start[0] == "r":
            return self._resources(start, stop, limit)
        begin, end = self._stored_range(start, stop)
        ends = start[0] in "cd" and type(self.command) not in _READING
        at_once = self.at_once if start[0] == "c" else DUE_PER_CLAIM * self.at_once
        if ends:
            limit = min(limit, at_once + 1)
        keys = list(self._keys(begin, end, limit, reverse))
        if start[0] == "c":
            keys = self._with_alone(start.split(r.SEPARATOR)[1], keys)[:limit]
        if ends and len(keys) > at_once:
            keys.pop()
            if start[0] == "c":
                self.unfinished.add(start.split(r.SEPARATOR)[1])
        if begin == waiting_of(resource_of(begin)):
            upto = f"{stored_key(keys[-1])}\x00" if len(keys) >= limit else end
            at = resource_of(begin)
            self.consumed[at] = max(upto, self.consumed.get(at, ""))
        return [(key, self.get(key)) for key in keys]

    def append(self, event: Event) -> None:
        self.log.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        """None: the log is read elsewhere."""
        return []

    def oldest(self) -> int | None:
        return None

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _read(self, key: str) -> Any:
        family = key[0]
        if family == "s":
            return self.session(key[2:])
        if family == "r":
            return self._resource(stored_key(key))
        if family == "c":
            return self._claim(key)
        found = self.known.get(stored_key(key))
        if found is None:
            return None
        if family in "hvw":
            ref, carried = decode(found.value)
            self._carry(ref, carried, found.mod)
            return ref
        return found.value

    def _claim(self, key: str) -> Claim | None:
        stored = self.known.kvs.get(key)
        if stored is not None:
            claim, owner = claim_from(decode(stored.value), stored.mod)
            self.owners.setdefault(claim.session, owner)
            return claim
        carried = self._carried.get(key)
        if carried is not None:
            return carried[0]
        own = isinstance(self.command, c.Enter | c.Leave) and self._own_claim == key
        if own and self._read_own_places():
            carried = self._carried.get(key)
            if carried is not None:
                return carried[0]
        if self.known.knows(key):
            return None if own and self.is_where_it_says else self._claim_alone(key)
        # Others of the same lines are needed next: all in one read.
        missing = {key: None}
        for line in self.known.kvs.values():
            if is_line(line.key):
                ref, carries = decode(line.value)
                other = r.claim_key(*r.parse_ref(ref))
                if carries is None and not self.known.knows(other):
                    missing[other] = None
        raise Missing(*(Want(one) for one in list(missing)[:64]))

    @property
    def _own_claim(self) -> str:
        return r.claim_key(self.command.session, self.command.n)  # type: ignore[union-attr]

    # ── claims without a row of their own ────────────────────────────────────────────

    def _claim_alone(self, key: str) -> Claim | None:
        """A claim that the row of its resource may have."""
        _, session, _ = key.split(r.SEPARATOR)
        for stored in list(self.known.kvs.values()):
            if stored.key == resource_of(stored.key):
                self._holder(stored)
        if key not in self._carried:
            self._alone_of(session)
        return self._carried[key][0] if key in self._carried else None

    def _alone_of(self, session: str) -> list[str]:
        """The claims of a session that are alone at their resources."""
        prefix = alone_prefix(session)
        known, end = self.known, end_of(prefix)
        if known.known_up_to(prefix, end) < end:
            raise Missing(Want(prefix, end))
        resources = [resource_alone(key) for key in known.between(prefix, end)]
        wants = [Want(resource) for resource in resources if not known.knows(resource)]
        if wants:
            raise Missing(*wants[:READ_TOGETHER])
        found = [self._holder(known.kvs[one])[1] for one in resources if one in known.kvs]
        return sorted(key for key in found if key in self.alone and key.split("\x1f")[1] == session)

    def _holder(self, stored: Kv) -> tuple[ResourceRow, str]:
        """A resource as stored, and the claim of its only holder, if it has one."""
        _, kind, name, _ = stored.key.split(r.SEPARATOR)
        row, holder = resource_from(kind, name, stored.value)
        if not row.sole:
            return row, ""
        ref = row.sole.split(r.SEPARATOR, 1)[1]
        key = r.claim_key(*r.parse_ref(ref))
        if holder is not None:
            self._carry(ref, holder.packed, stored.mod)
            if holder.is_alone:
                self.alone.add(key)
        return row, key

    def _with_alone(self, session: str, keys: list[str]) -> list[str]:
        alone = [key for key in self._alone_of(session) if self.changes.get(key, self) is not None]
        return sorted({*keys, *alone})

    def _read_own_places(self) -> bool:
        """Read the resources that whoever leaves names, as far as they are known."""
        prefixes = [r.resource_key(*place[:2]) for place in getattr(self.command, "places", ())]
        known = [key for key in prefixes if self._is_known(stored_key(key))]
        for key in known:
            self.get(key)
        return bool(known)

    def _carry(self, ref: str, packed: list[Any] | None, revision: int) -> None:
        if packed is not None:
            claim, owner = claim_from(packed, revision)
            self._carried.setdefault(r.claim_key(*r.parse_ref(ref)), (claim, owner))
            self.owners.setdefault(claim.session, owner)

    def _resource(self, prefix: str) -> ResourceRow | None:
        if not self._is_known(prefix):
            raise Missing(*self._wants_of_resources(prefix))
        stored = self.known.get(prefix)
        if stored is None:
            self.touched[prefix] = None
            return None
        row, _ = self._holder(stored)
        rows = 0 if row.sole else row.holders
        marked = marker_of(prefix) in self.known.kvs
        row.waiting = self.known.counts[prefix] - 1 - marked - rows - row.reservations
        self.touched[prefix] = as_stored(row)
        return row

    def _is_known(self, prefix: str) -> bool:
        """Whether the resource was read with the number of its rows, or has none."""
        there = prefix in self.known.kvs
        return prefix in self.known.counts if there else self.known.knows(prefix)

    def _wants_of_resources(self, prefix: str) -> list[Want]:
        """This one and all others that will be asked for next."""
        prefixes = {prefix: None}
        for place in getattr(self.command, "places", ()):
            prefixes[stored_key(r.resource_key(*place[:2]))] = None
        if isinstance(self.command, c.Listing):
            prefixes.update((key, None) for key in self.known.kvs if key == resource_of(key))
        return [Want.resource(one) for one in prefixes if not self._is_known(one)][:100]

    def session(self, session: str) -> Session | None:
        """The session, to read and change; exact only if need be."""
        known = self.known
        record_at, living_at = record_key(session), living_key(session)
        if not (known.knows(record_at) and known.knows(living_at)):
            owner = self.owners.get(session)
            if owner is not None and not self.exact:
                self.approximate.add(session)
                deadline_ms = self.now_ms + owner.ttl_ms
                return Session(
                    session, owner.ttl_ms, owner.owner, "", owner.inbox, owner.process, 0,
                    deadline_ms,
                )  # fmt: skip
            raise Missing(*self._wants_of_sessions(session))
        stored, living = known.get(record_at), known.get(living_at)
        if stored is None:
            return None
        record = Record(*decode(stored.value))
        lives = Living(*decode(living.value)) if living is not None else None
        found = session_from(session, record, lives, self.now_ms, by_lease=self.by_lease)
        self.owners[session] = Owner(record.owner, record.inbox, record.process, record.ttl_ms)
        if record.sentence and not isinstance(self.command, c.Close | c.Expel | c.RevokeSession):
            # Others are about to end it: to all but those it is over already.
            found.ended, found.by = record.sentence[1], record.by
            found.deadline_ms = self.now_ms + ENDED_KEPT_MS
        self._number(found, lives.lowest if lives is not None else 0)
        if isinstance(self.command, c.Sessions) and not record.ended:
            found.claims, found.checksum = account_of(
                claim for _, claim in self._claims_of(session)
            )
        elif self.account is not None and session == getattr(self.command, "session", ""):
            found.claims, found.checksum = self.account
        return found

    def _number(self, session: Session, lowest: int) -> None:
        """Say of the command's own claim number whether it was seen before."""
        command = self.command
        session.highest = max(0, lowest - 1)
        if isinstance(command, c.Enter) and command.session == session.id:
            n = command.n
            finished = n in self.finished
            seen = (
                finished
                or n < max(1, lowest)
                or self._claim(r.claim_key(session.id, n)) is not None
            )
            session.highest = n if seen else n - 1

    def _wants_of_sessions(self, session: str) -> list[Want]:
        """This one and all others that may be asked for next."""
        ids = {session: None, **dict.fromkeys(self.owners)}
        keys = [key for one in ids for key in (record_key(one), living_key(one))]
        return [Want(key) for key in keys if not self.known.knows(key)][:64]

    def dead(self) -> list[tuple[str, Record]]:
        """Sessions met on the way that live no more, though nobody has ended them yet."""
        found = []
        for session in self.owners:
            stored = self.known.kvs.get(record_key(session))
            living = living_key(session)
            gone = self.known.knows(living) and not self.known.mod(living)
            if stored is not None and gone:
                record = Record(*decode(stored.value))
                if not record.ended:
                    found.append((session, record))
        return found

    # ── ranges ───────────────────────────────────────────────────────────────────────

    def _stored_range(self, start: str, stop: str) -> tuple[str, str]:
        if start[0] not in "hvw":
            return start, stop
        prefix = r.SEPARATOR.join([*start.split(r.SEPARATOR, 3)[:3], ""])
        begin = stored_key(start)
        if stop == r.after_prefix(prefix):
            return begin, end_of(stored_key(prefix))
        return begin, stored_key(stop)

    def _keys(self, begin: str, end: str, limit: int, reverse: bool = False) -> Iterator[str]:
        """Keys of the table in a range, as changed so far."""
        in_line = begin.startswith(f"r{r.SEPARATOR}")
        if in_line and not self._is_known(resource_of(begin)):
            raise Missing(Want.resource(resource_of(begin)))
        known = self.known
        edge = known.known_down_to(begin, end) if reverse else known.known_up_to(begin, end)
        low, high = (edge, end) if reverse else (begin, edge)
        keys = {table_key(key) for key in known.between(low, high)}
        for key, row in self.changes.items():
            if low <= stored_key(key) < high:
                (keys.discard if row is None else keys.add)(key)
        found = sorted(keys, key=stored_key, reverse=reverse)[:limit]
        if len(found) < limit and (edge > begin if reverse else edge < end):
            at_once = min(max(limit, 2), READ_AT_ONCE)
            raise Missing(Want(begin, edge, at_once, True) if reverse else Want(edge, end, at_once))
        return iter(found)

    def _claims_of(self, session: str) -> list[tuple[str, Claim]]:
        prefix = r.claims_prefix(session)
        keys = list(self._keys(prefix, r.after_prefix(prefix), READ_AT_ONCE**2))
        return [(key, self.get(key)) for key in self._with_alone(session, keys)]

    def _sessions(self, start: str, limit: int) -> list[tuple[str, Any]]:
        begin = f"o{start[1:]}"
        keys = [key[2:] for key in self._keys(begin, end_of(record_key("")), limit)]
        wants = [Want(living_key(one)) for one in keys if not self.known.knows(living_key(one))]
        if wants:
            raise Missing(*wants[:100])
        return [(r.session_key(one), self.get(r.session_key(one))) for one in keys]

    def _resources(self, start: str, stop: str, limit: int) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for key in self._keys_of_resources(start, stop):
            if key >= start:
                found.append((key, self.get(key)))
                if len(found) == limit:
                    break
        return found

    def _keys_of_resources(self, start: str, stop: str) -> Iterator[str]:
        edge = self.known.known_up_to(start, stop)
        for key in self.known.between(start, edge):
            if key == resource_of(key):
                yield table_key(key)
        if edge < stop:
            raise Missing(Want(edge, stop, READ_AT_ONCE))

    def _is_end_of_living(self, key: str) -> bool:
        _, _, session, *rest = key.split(r.SEPARATOR)
        if not session or int(rest[0], 16):
            return False
        row = self.changes.get(r.session_key(session)) or self._live.get(r.session_key(session))
        return not isinstance(row, Session) or not row.ended


_READING: Final = frozenset((c.Claims, c.Sessions, c.Inspect, c.Listing, c.Look))


def as_stored(row: ResourceRow) -> tuple[Any, ...]:
    """All of a resource that its row says, to see whether it changes."""
    return (
        dict(row.held), dict(row.reserved), row.holders, row.reservations, row.sole,
        row.converting, row.limit, row.closed_ms, row.kept,
    )  # fmt: skip


def account_of(claims: Any) -> tuple[int, int]:
    """Count and checksum of claims that are neither over nor taken away."""
    pairs = [(claim.n, claim.token) for claim in claims if claim.state != REVOKED]
    return len(pairs), checksum_of(pairs)
