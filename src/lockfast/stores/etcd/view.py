"""The lock table's rows, built from the ranges that one request has read.

The table runs over a `View` and finds sessions, claims, resources and lines as rows. What it
needs and has not been read is noted in `wants`; if the table cannot go on without it, `Missing`
is raised. The step then reads everything wanted at one revision and runs the table anew. What
the table writes stays in the view, for `plan` to turn into a transaction.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lockfast.core import rows as r
from lockfast.core.commands import HOLDING, Event
from lockfast.core.lines import FAR_MS, place_at, share
from lockfast.core.modes import MODES_OF_KIND, PERMIT
from lockfast.core.rows import Claim, Meta, ResourceRow, Session, copied
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.layout import Base, Owner
from lockfast.stores.etcd.owned import Location, OwnSessions
from lockfast.stores.etcd.requests import Found, Kv, Range

WINDOW: Final = 6
"""How many keys of a resource are read at first: a holder, its heir, and the heir's heirs."""
HOLDERS_READ: Final = 17
"""Of each mode, where there are more holders than fit the window: the table asks for 16."""


class Missing(Exception):  # it is no error: the step reads on
    """The table needs what has not been read; `View.wants` says what."""


class Instant(NamedTuple):
    """What the clocks say."""

    now_ms: int
    wall_us: int
    by_lease: bool = True
    """Sessions and closings end with their leases, whatever clocks say. Tests that compare the
    store with the table set this to False and end leases by their own clock."""


class Known:
    """What one request has read, at one revision; or what a step assumes to be so."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self.found: dict[Range, Found] = {}
        self.kvs: dict[str, Kv] = {}
        self.parsed: dict[str, Any] = {}
        """Values that are known without reading them: records of sessions, claims with owners."""

    def learn(self, wanted: Range, found: Found) -> None:
        self.found[wanted] = found
        for kv in found.kvs:
            self.kvs[kv.key] = kv

    def has(self, key: str) -> bool:
        """Whether it is known if this key is there."""
        return key in self.kvs or Range(key) in self.found


class Lines:
    """One resource as it was read."""

    def __init__(self, kind: str, name: str) -> None:
        self.row = ResourceRow(kind, name)
        self.before: ResourceRow | None = None
        self.prefix = k.resource_prefix(kind, name)
        self.holders: list[Claim] = []
        self.reserved: list[Claim] = []
        self.waiting_kvs: list[Kv] = []
        """The head of the line, as stored."""
        self.stored_waiting = 0
        self.is_plain = True
        """Nothing is stored of it but holders and waiting claims."""
        self.limit_is_stored = False
        self.stale_delays: list[str] = []
        """Keys of lock_delays whose holders are gone."""
        self.relied_end = f"{self.prefix}w"
        """The table has decided by everything before this key."""
        self.is_used = False


class View:
    """The row port, during one run of the table."""

    def __init__(
        self,
        known: Known,
        own: OwnSessions,
        base: Base,
        instant: Instant,
        arrival: int = 1,
        n: int = 0,
        *,
        exact: bool,
    ) -> None:
        self.known = known
        self.base = base
        self.logs = base.log_until_ms > instant.wall_us // 1000
        self.wants: set[Range] = set()
        self.located: dict[tuple[str, int], Location | None] = {}
        self.unlocated: set[tuple[str, int]] = set()
        """Claims of other processes whose places are not known."""
        self.windows: dict[str, int] = {}
        self.owners: dict[str, Owner] = {}
        self.claims_before: dict[tuple[str, int], Claim | None] = {}
        self.claims: dict[tuple[str, int], Claim | None] = {}
        """As the table has left them."""
        self.kv_of: dict[tuple[str, int], Kv] = {}
        """One key of each claim that was read."""
        self.looked_up: set[tuple[str, int]] = set()
        """Claims that were asked for by number, and not found in a line."""
        self.sessions: dict[str, Session] = {}
        self.lines: dict[tuple[str, str], Lines] = {}
        self.logged: list[Event] = []
        self._own = own
        self.instant = instant
        self.now_ms = instant.now_ms
        self._exact = exact
        self._arrival = arrival
        self._n = n
        self._deleted: set[str] = set()
        self._added: dict[str, str] = {}
        """Rows of lines: the table's key, and the claim it refers to."""
        self._due: list[str] = []

    @property
    def has_due(self) -> bool:
        """Whether a claim that was read has held for longer than it may."""
        return bool(self._due)

    # ── the row port ─────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "m":
            due_ms = 0 if self._due else FAR_MS
            return Meta(k.RELATIVE - 1, self._arrival - 1, due_ms)
        if family == "s":
            return self._session(rest)
        if family == "c":
            session, _, n = rest.partition(r.SEPARATOR)
            return self._claim(session, int(n, 16))
        kind, _, name = rest.partition(r.SEPARATOR)
        lines = self.resource(kind, name)
        return lines.row if lines.is_used else None

    def put(self, key: str, row: Any) -> None:
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "s":
            self.sessions[rest] = row
        elif family == "c":
            self.claims[row.session, row.n] = row
        elif family == "r":
            lines = self.resource(row.kind, row.name)
            lines.row, lines.is_used = row, True
        elif family in "hvw":
            self._added[key] = row
            self._deleted.discard(key)

    def add(self, key: str, row: Any) -> None:
        self.put(key, row)

    def delete(self, key: str) -> None:
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "c":
            session, _, n = rest.partition(r.SEPARATOR)
            self.claims[session, int(n, 16)] = None
        elif family == "r":
            kind, _, name = rest.partition(r.SEPARATOR)
            lines = self.resource(kind, name)
            lines.row, lines.is_used = ResourceRow(kind, name), False
        elif family == "d":
            self._due = [other for other in self._due if other != key]
        elif family in "hvw":
            self._added.pop(key, None)
            self._deleted.add(key)

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        family = start[0]
        if family == "d":
            return [(key, "") for key in sorted(self._due) if key < stop][:limit]
        if family not in "hvw":
            return []
        _, kind, name, bound = start.split(r.SEPARATOR, 3)
        lines = self.resource(kind, name)
        if family == "w":
            return self._scan_waiting(lines, start, stop, bound, limit, reverse)
        held = lines.holders if family == "h" else lines.reserved
        if family == "h" and lines.before is not None and lines.before.sole:
            held = []  # the table keeps it in the resource's row
        prefix = r.line_prefix(family, kind, name)
        found = {prefix + claim.rank: r.claim_ref(claim.session, claim.n) for claim in held}
        return self._merged(found, prefix, start, stop, limit, reverse)

    def append(self, event: Event) -> None:
        self.logged.append(event)

    def events(self, after: int, limit: int) -> list[Event]:
        return []  # the log is read elsewhere

    def oldest(self) -> int | None:
        return None

    # ── sessions and claims ──────────────────────────────────────────────────────────

    def _session(self, session: str) -> Session | None:
        found = self.sessions.get(session)
        if found is None:
            found = self._read_session(session)
            if found is not None:
                self.sessions[session] = found
        return found

    def _read_session(self, session: str) -> Session | None:
        known, now_ms = self.known, self.instant.now_ms
        key = k.session_key(session)
        own = self._own.get(session)
        if not known.has(key) and (own is not None or self._exact or session not in self.owners):
            self.wants |= {Range(key), Range(k.ended_key(session))}
            if session not in self.owners:
                raise Missing
        kv = known.kvs.get(key)
        if kv is not None:
            record = known.parsed.get(key) or k.typed(k.Record, k.decode(kv.value))
            self.owners[session] = Owner(*record[:5])
            if self._exact and not known.has(k.alive_key(session)):
                self.wants.add(Range(k.alive_key(session)))
            alive = known.kvs.get(k.alive_key(session))
            renewals, deadline_ms = 0, now_ms + record.ttl_ms
            if alive is not None:
                renewals, renewed_ms = k.typed(k.Alive, k.decode(alive.value))
                deadline_ms = renewed_ms + record.ttl_ms
            if self.instant.by_lease:
                # Clocks of machines differ; as long as its key is there the session lives.
                deadline_ms = max(deadline_ms, now_ms + 1)
            found = Session(
                session, record.ttl_ms, record.owner, record.metadata, record.inbox,
                record.process, record.opened_ms, deadline_ms, renewals,
            )  # fmt: skip
            if own is not None:
                own.fill(found, self._n, exact=self._exact)
            return found
        ended = k.ended_key(session)
        if known.has(key) and not known.has(ended):
            self.wants.add(Range(ended))
            raise Missing
        tomb = known.kvs.get(ended)
        if tomb is not None:
            return ended_session(session, k.typed(k.Tombstone, k.decode(tomb.value)))
        if known.has(key):
            return own.expired_row() if own is not None and own.was_opened else None
        owner = self.owners[session]
        return Session(
            session, owner.ttl_ms, owner.owner, "", owner.inbox, owner.process, 0,
            now_ms + owner.ttl_ms,
        )  # fmt: skip

    def _claim(self, session: str, n: int) -> Claim | None:
        of = (session, n)
        if of not in self.claims:
            self.claims[of] = found = self._read_claim(session, n)
            self.claims_before.setdefault(of, copied(found))
        return self.claims[of]

    def _read_claim(self, session: str, n: int) -> Claim | None:
        """A claim that no line read so far has shown."""
        of = (session, n)
        self.looked_up.add(of)
        known = self.known
        location = self.located.get(of)
        if of not in self.located:
            own = self._own.get(session)
            if own is None:
                self.unlocated.add(of)
                raise Missing
            location = own.location(n)
        wanted = [Range(k.word_key(session, n))]
        if location is not None:
            wanted += location.candidates(session, n)
        for one in wanted[1:]:
            if one.start in known.kvs:
                return self._claim_at(known.kvs[one.start])
        missing = [one for one in wanted if not known.has(one.start)]
        if missing:
            self.wants.update(missing)
            raise Missing
        word = known.kvs.get(wanted[0].start)
        if word is None and location is not None and of not in self.located:
            self.unlocated.add(of)  # it may have been given another rank
            raise Missing
        return k.revoked_from(session, n, word) if word is not None else None

    def _claim_at(self, kv: Kv) -> Claim:
        """The claim that a key of a line stores."""
        key = k.parse_place(kv.key)
        of = (key.session, key.n)
        if of not in self.kv_of:
            claim, owner = self.known.parsed.get(kv.key) or k.claim_from(key, kv)
            self.owners.setdefault(key.session, owner)
            self.kv_of[of] = kv
            self.claims[of] = claim
            self.claims_before[of] = copied(claim)
        found = self.claims[of] or self.claims_before[of]
        assert found is not None
        return found

    # ── resources ────────────────────────────────────────────────────────────────────

    def resource(self, kind: str, name: str) -> Lines:
        lines = self.lines.get((kind, name))
        if lines is None:
            lines = self._read_resource(kind, name)
            self.lines[kind, name] = lines
        return lines

    def ranges_of(self, prefix: str) -> list[Range]:
        """What to read of a resource."""
        return [Range(prefix, k.end_of(prefix), self.windows.get(prefix, WINDOW))]

    def _crowded(self, kind: str, prefix: str) -> list[Range]:
        """As ranges_of, where the first keys are all holders or reservations."""
        modes = sorted(MODES_OF_KIND[kind])
        window = self.windows.get(prefix, WINDOW)
        return [
            Range(f"{prefix}c", f"{prefix}h"),
            *(
                Range(
                    f"{prefix}h\x1f{mode}\x1f",
                    f"{prefix}h\x1f{mode} ",
                    0 if mode == PERMIT else HOLDERS_READ,
                )
                for mode in modes
            ),
            Range(f"{prefix}v\x1f", f"{prefix}v "),
            Range(f"{prefix}w\x1f", f"{prefix}w ", window),
        ]

    def _need(self, ranges: list[Range]) -> list[Found]:
        missing = [one for one in ranges if one not in self.known.found]
        if missing:
            self.wants.update(missing)
            raise Missing
        return [self.known.found[one] for one in ranges]

    def _read_resource(self, kind: str, name: str) -> Lines:
        lines = Lines(kind, name)
        prefix = lines.prefix
        (found,) = self._need(self.ranges_of(prefix))
        kvs, extra = found.kvs, 0
        others = [kv for kv in kvs if not kv.key.startswith(f"{prefix}w\x1f")]
        waiting = found.count - len(others)
        if len(kvs) < found.count and len(others) == len(kvs):
            parts = self._need(self._crowded(kind, prefix))
            others = [kv for part in parts[:-1] for kv in part.kvs]
            kvs, waiting = parts[-1].kvs, parts[-1].count
            by_mode = dict(zip(sorted(MODES_OF_KIND[kind]), parts[1:-2], strict=True))
            for mode, part in by_mode.items():
                beyond = part.count - len(part.kvs)
                if beyond:
                    lines.row.held[mode] = lines.row.held.get(mode, 0) + beyond
                    extra += beyond
        # Claims of a session that is being ended are not in line any more.
        lines.waiting_kvs = [kv for kv in kvs if kv.key.startswith(f"{prefix}w\x1f")]
        lines.stored_waiting = waiting
        lines.is_plain = all(kv.key.startswith(f"{prefix}h\x1f") for kv in others)
        ending = sum(self.is_ending(k.parse_place(kv.key).session) for kv in lines.waiting_kvs)
        lines.row.waiting = waiting - ending
        lines.row.holders = extra
        self._fill(lines, others)
        lines.is_used = bool(
            lines.row.holders or lines.row.waiting or lines.reserved or lines.row.closed_ms
        )
        lines.before = copied(lines.row)
        return lines

    def _fill(self, lines: Lines, others: list[Kv]) -> None:
        """Take over everything but the waiting line."""
        row, now_ms = lines.row, self.instant.now_ms
        delays: list[tuple[k.PlaceKey, Kv]] = []
        limit = stored_limit = closed_limit = 0
        for kv in others:
            key = k.parse_place(kv.key)
            if key.line == "c":
                row.closed_ms, closed_limit = k.typed(k.Closing, k.decode(kv.value))
                if self.instant.by_lease:
                    row.closed_ms = max(row.closed_ms, now_ms + 1)
            elif key.line == "d":
                delays.append((key, kv))
            elif key.line == "e":
                stored_limit = self._number(kv)
                lines.limit_is_stored = True
            elif key.line == "f":
                continue  # for those who do not read the holders
            elif not self.is_ending(key.session) or key.line == "h":
                claim = self._claim_at(kv)
                place = place_at(claim, row)
                limit = limit or place.limit
                counts = row.held if key.line == "h" else row.reserved
                counts[place.mode] = counts.get(place.mode, 0) + share(place)
                (lines.holders if key.line == "h" else lines.reserved).append(claim)
                self._note_bound(claim)
        row.holders += len(lines.holders)
        row.reservations = len(lines.reserved)
        row.retained = sum(claim.block > 1 for claim in lines.holders)
        if row.holders == len(lines.holders) == 1:
            (sole,) = lines.holders
            row.sole = f"{sole.rank}{r.SEPARATOR}{r.claim_ref(sole.session, sole.n)}"
        for claim in lines.holders:
            if claim.wants:
                row.converting = r.claim_ref(claim.session, claim.n)
        if row.holders or row.waiting or row.reservations:
            row.limit = stored_limit or limit
            if not row.limit and row.kind == "semaphore":
                row.limit = self._limit_of_waiting(lines)
        row.limit = row.limit or closed_limit
        held = {(claim.session, claim.n) for claim in lines.holders}
        for key, kv in delays:
            if (key.session, key.n) not in held:
                # Its holder's session ended with its lease: the delay begins now.
                lines.stale_delays.append(kv.key)
                span_ms, limit = k.typed(k.Closing, k.decode(kv.value))
                row.closed_ms = max(row.closed_ms, now_ms + span_ms)
                row.limit = row.limit or limit

    def _limit_of_waiting(self, lines: Lines) -> int:
        for _, claim in self._waiting(lines, WINDOW):
            return place_at(claim, lines.row).limit
        return 0

    def _number(self, kv: Kv) -> int:
        value = k.decode(kv.value)
        if not isinstance(value, int):
            raise k.UnreadableError(f"{kv.key!r} is {kv.value[:40]!r}, not a number")
        return value

    def _note_bound(self, claim: Claim) -> None:
        """A holder whose max_hold is over is due: the table takes its claim away."""
        if claim.state == HOLDING and claim.until_ms:
            key = k.bound_key(claim.session, claim.n)
            if not self.known.has(key):
                self.wants.add(Range(key))
            elif key not in self.known.kvs:
                self._due.append(r.due_key(self.instant.now_ms, claim.session, claim.n))

    def is_ending(self, session: str) -> bool:
        """Whether a session's life was taken and its lease is not over yet."""
        key = k.session_key(session)
        return self.known.has(key) and key not in self.known.kvs

    # ── the waiting line ─────────────────────────────────────────────────────────────

    def _waiting(self, lines: Lines, limit: int) -> Iterator[tuple[str, Claim]]:
        """Claims that wait, as read, from the head on; Missing if more could be read."""
        for kv in lines.waiting_kvs:
            key = k.parse_place(kv.key)
            if not self.is_ending(key.session):
                yield kv.key, self._claim_at(kv)
        if len(lines.waiting_kvs) < lines.stored_waiting:
            window = self.windows.get(lines.prefix, WINDOW)
            self.windows[lines.prefix] = 4 * max(window, limit)
            self.wants.update(self.ranges_of(lines.prefix))
            raise Missing

    def _scan_waiting(
        self, lines: Lines, start: str, stop: str, bound: str, limit: int, reverse: bool
    ) -> list[tuple[str, Any]]:
        prefix = r.line_prefix("w", lines.row.kind, lines.row.name)
        if not bound and not reverse:
            return self._scan_head(lines, prefix, limit)
        # Beside one claim: the one before it, or the one behind it.
        low = f"{lines.prefix}w\x1f" + bound.replace("\x00", " ")
        high = stop.replace(prefix, f"{lines.prefix}w\x1f", 1)
        if not stop.startswith(prefix):
            high = f"{lines.prefix}w "
        wanted = Range(low, high, limit + len(self._deleted) + 1, reverse)
        (found,) = self._need([wanted])
        rows = {}
        for kv in found.kvs:
            key = k.parse_place(kv.key)
            if not self.is_ending(key.session):
                claim = self._claim_at(kv)
                rows[prefix + claim.rank] = r.claim_ref(claim.session, claim.n)
        return self._merged(rows, prefix, start, stop, limit, reverse)

    def _scan_head(self, lines: Lines, prefix: str, limit: int) -> list[tuple[str, Any]]:
        added = sorted(key for key in self._added if key.startswith(prefix))
        found: list[tuple[str, Any]] = []
        gone = sum(key.startswith(prefix) for key in self._deleted)
        if limit < FAR_MS and lines.row.waiting <= 0 and not added and gone:
            return []
        for key, claim in self._waiting(lines, min(limit, 1000)):
            row_key = prefix + claim.rank
            while added and added[0] < row_key and len(found) < limit:
                found.append((added[0], self._added[added.pop(0)]))
            if len(found) >= limit:
                return found
            if row_key not in self._deleted and row_key not in self._added:
                found.append((row_key, r.claim_ref(claim.session, claim.n)))
                lines.relied_end = max(lines.relied_end, f"{key}\x00")
            if len(found) >= limit:
                return found
        lines.relied_end = k.end_of(lines.prefix)
        found += [(key, self._added[key]) for key in added]
        return found[:limit]

    def _merged(
        self, rows: dict[str, str], prefix: str, start: str, stop: str, limit: int, reverse: bool
    ) -> list[tuple[str, Any]]:
        """Rows that were read, with what the table has changed."""
        keys: list[str] = []
        for key in {**rows, **self._added}:
            if key not in self._deleted and key.startswith(prefix) and start <= key < stop:
                insort(keys, key)
        if reverse:
            keys.reverse()
        return [(key, self._added.get(key) or rows[key]) for key in keys[:limit]]


def ended_session(session: str, tomb: k.Tombstone) -> Session:
    record = k.Record(*tomb.record)
    return Session(
        session, record.ttl_ms, record.owner, record.metadata, record.inbox, record.process,
        record.opened_ms, FAR_MS, tomb.renewals, ended=tomb.reason, by=tomb.by,
    )  # fmt: skip
