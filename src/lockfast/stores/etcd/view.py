"""The lock table's rows, derived from the ranges that one request has read.

The table runs over a `View`, which presents sessions, claims, resources and queues as rows in
memory. Ranges that it needs and that have not been read are added to `wants`; if the table cannot
continue without them, `Missing` is raised. The step then reads everything wanted at one revision
and runs the table again. The table's changes stay in the view, for `plan` to turn into a
transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from lockfast.core import rows as r
from lockfast.core.commands import WAITING
from lockfast.core.lines import FAR_MS
from lockfast.core.modes import MODES_OF_KIND, PERMIT
from lockfast.core.rows import Claim, ResourceRow, Session, copied
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.view import ClaimId, DerivedRows, Name
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.layout import Base, Owner
from lockfast.stores.etcd.owned import OwnSessions
from lockfast.stores.etcd.requests import Found, Known, Kv, Range

OTHERS_READ: Final = 8
"""How many keys of a resource to read first, apart from waiting claims."""
WINDOW: Final = 5
"""How many waiting claims to read first: the heir of a holder, and the heir's heirs."""
HOLDERS_READ: Final = 17
"""Holders to read per mode, if they do not fit the window; the table asks for 16."""


def others_of(prefix: str, start: str) -> Range:
    """Return the range to read for everything at a resource except its queue."""
    return Range(k.place_key(prefix, "a", start), f"{prefix}w", OTHERS_READ)


def queue_of(prefix: str, start: str, limit: int = WINDOW) -> Range:
    """Return the range to read for the head of a queue."""
    return Range(*k.queue_from(prefix, start), limit)


class Missing(Exception):  # not an error: the step reads more
    """The table needs data that has not been read; see `View.wants`."""


class Lines:
    """One resource, as read."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.prefix = k.resource_prefix(kind, name)
        self.before = ResourceRow(kind, name)
        self.queue = Found([], 0)
        """The head of the queue, as stored."""
        self.is_plain = True
        """Whether only holders and waiting claims are stored."""
        self.limit_is_stored = False
        self.stale_delays: list[str] = []
        """Keys of lock_delays whose holders are gone."""
        self.start = ""
        """Where the ranges over the queue begin; see `layout`."""
        self.stored_starts: list[str] = []
        """The ranks of the starts that were read, in order."""
        self.relied_end = f"{self.prefix}w"
        """The table's decision relied on all keys before this one."""

    @property
    def is_whole(self) -> bool:
        """Whether all waiting claims were read."""
        return len(self.queue.kvs) == self.queue.count

    @property
    def last_row(self) -> str:
        """The table's key of the last waiting claim that was read."""
        prefix = r.line_prefix("w", self.kind, self.name)
        return prefix + k.parse_place(self.queue.kvs[-1].key).rank if self.queue.kvs else prefix


class View(DerivedRows[Owner]):
    """The row port for one run of the table."""

    __slots__ = (
        "_arrival", "_at", "_exact", "_n", "_own", "base", "known", "kv_of", "lines", "located",
        "looked_up", "slots", "starts", "unlocated", "wants", "windows",
    )  # fmt: skip

    def __init__(
        self, known: Known, own: OwnSessions, base: Base, instant: Instant, *, exact: bool,
        arrival: int = 1, n: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(instant)
        self.known = known
        self.base = base
        self.wants: set[Range] = set()
        self.windows: dict[str, int] = {}
        self.starts: dict[str, str] = {}
        self.located: dict[ClaimId, k.PlaceKey | None] = {}
        self.unlocated: set[ClaimId] = set()
        """Claims of other processes whose places are unknown."""
        self.kv_of: dict[ClaimId, Kv] = {}
        """One key of each claim that was read."""
        self.slots: dict[ClaimId, str] = {}
        self.looked_up: set[ClaimId] = set()
        """Claims that were looked up by number and not found in a queue."""
        self.lines: dict[Name, Lines] = {}
        self._at: dict[str, Claim] = {}
        """The claims that were read, by their keys."""
        self._own = own
        self._exact = exact
        self._arrival = arrival
        self._n = n

    # ── the row port ─────────────────────────────────────────────────────────────────

    @property
    def logs(self) -> bool:  # type: ignore[override]
        return self.base.log_until_ms > self.instant.wall_us // 1000

    def get(self, key: str) -> Any:
        if key == r.META_KEY:
            return self.meta(self._arrival)
        family, _, rest = key.partition(r.SEPARATOR)
        if family == "r":
            self.resource(*rest.split(r.SEPARATOR))
        found = super().get(key)
        if found is not None or family == "r":
            return found
        if family == "s":
            found = self._read_session(rest)
        elif family == "c":
            session, _, n = rest.partition(r.SEPARATOR)
            if (session, int(n, 16)) in self.before:
                return None  # the table has deleted it
            found = self._read_claim(session, int(n, 16))
        if found is not None:
            self.put(key, found)
        return found

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        family = start[0]
        if family not in "hvw":
            return super().scan(start, stop, limit, reverse)
        _, kind, name, bound = start.split(r.SEPARATOR, 3)
        lines = self.resource(kind, name)
        if family != "w":
            return super().scan(start, stop, limit, reverse)
        if bound or reverse:
            return self._scan_beside(lines, start, stop, limit, reverse)
        found = super().scan(start, stop, limit)
        if not lines.is_whole and self.row(lines).waiting > 0:
            found = [item for item in found if item[0] <= lines.last_row]
            if len(found) < limit:
                self._read_more(lines, limit)
        if len(found) == limit:
            claim = super().get(r.claim_key(*r.parse_ref(found[-1][1])))
            slot = self.slot_of((claim.session, claim.n))
            key = k.place_key(lines.prefix, "w", claim.rank, claim.session, slot)
            lines.relied_end = max(lines.relied_end, f"{key}\x00")
        else:
            lines.relied_end = k.end_of(lines.prefix)
        return found

    def _read_more(self, lines: Lines, limit: int) -> None:
        window = self.windows.get(lines.prefix, WINDOW)
        self.windows[lines.prefix] = 4 * max(window, min(limit, 1000))
        self._need([self.queue_of(lines.prefix)])

    def _scan_beside(
        self, lines: Lines, start: str, stop: str, limit: int, reverse: bool
    ) -> list[tuple[str, Any]]:
        """Return the rows before or behind a claim, which may be far from the queue's head."""
        found = super().scan(start, stop, limit, reverse)
        if lines.is_whole or (found and found[-1][0] <= lines.last_row and not reverse):
            return found
        if reverse and stop <= lines.last_row:
            return found
        prefix, stored = r.line_prefix("w", lines.kind, lines.name), f"{lines.prefix}w\x1f"
        low = start.replace(prefix, stored, 1).replace("\x00", " ")
        low = max(low, k.queue_from(lines.prefix, lines.start)[0])
        high = stop.replace(prefix, stored, 1) if stop.startswith(prefix) else f"{stored[:-1]} "
        (there,) = self._need([Range(low, high, limit + 2, reverse)])
        rows = dict(super().scan(start, stop, FAR_MS))
        for kv in there.kvs:
            read = self._claim_at(kv)
            claim = self.stored(read.session, read.n)
            if claim is not None and claim.state == WAITING and not self._is_ending(kv):
                rows[prefix + claim.rank] = r.claim_ref(claim.session, claim.n)
        return sorted(rows.items(), reverse=reverse)[:limit]

    # ── sessions and claims ──────────────────────────────────────────────────────────

    def _read_session(self, session: str) -> Session | None:
        known, now_ms, own = self.known, self.instant.now_ms, self._own.get(session)
        key, alive, ended = k.session_key(session), k.alive_key(session), k.ended_key(session)
        if not known.has(key) and (own is not None or self._exact or session not in self.owners):
            self.wants |= {Range(key), Range(ended)}
            if session not in self.owners:
                raise Missing
        kv = known.get(key)
        if kv is not None:
            record: k.Record = k.read(k.Record, kv)
            if own is not None and record.home != own.home:
                own.leave_home()
                own = None
            self.owners[session] = record.owned
            if self._exact and not known.has(alive):
                self.wants.add(Range(alive))
            renewals, renewed_ms = k.alive_from(known.get(alive), now_ms)
            # Clocks differ between machines: the session lives as long as its key exists.
            deadline_ms = self.instant.deadline_ms(renewed_ms + record.ttl_ms)
            found = k.session_row(session, record, deadline_ms, renewals)
            if own is not None:
                own.fill(found, self._n, exact=self._exact)
            return found
        if known.has(key):
            if not known.has(ended):
                self.wants.add(Range(ended))
                raise Missing
            tomb = known.get(ended)
            if tomb is not None:
                return k.ended_row(session, k.read(k.Tombstone, tomb))
            return own.expired_row() if own is not None else None
        return self.guest(session)

    def _read_claim(self, session: str, n: int) -> Claim | None:
        """Return a claim that is in none of the queues read so far."""
        of, known = (session, n), self.known
        self.looked_up.add(of)
        if of in self.located:
            location = self.located[of]
        else:
            own = self._own.get(session)
            if own is None:
                self.unlocated.add(of)
                raise Missing
            location = own.location(n)
        word = Range(k.word_key(session, n))
        candidates = location.candidates() if location is not None else []
        for one in candidates:
            kv = known.get(one.start)
            if kv is not None:
                self._claim_at(kv)
                return self.stored(session, n)
        missing = {one for one in (word, *candidates) if not known.has(one.start)}
        if missing:
            self.wants |= missing
            raise Missing
        said = known.get(word.start)
        if said is None and location is not None and of not in self.located:
            self.unlocated.add(of)  # it may have been given another rank
            raise Missing
        found = k.revoked_from(session, n, said) if said is not None else None
        self.before[of] = copied(found)
        return found

    def _claim_at(self, kv: Kv) -> Claim:
        """Return the claim stored at a key, as read."""
        found = self._at.get(kv.key)
        if found is None:
            key = k.parse_place(kv.key)
            claim, owner = k.claim_from(key, kv)
            of = (claim.session, claim.n)
            self.kv_of.setdefault(of, kv)
            self.slots[of] = key.slot
            found = self._at[kv.key] = self.add_claim(claim, owner)
        return found

    def slot_of(self, of: ClaimId) -> str:
        """Return the slot of a claim that was read, or that our own session enters."""
        if of not in self.slots:
            own = self._own.get(of[0])
            assert own is not None, f"claim {of} was not read"
            self.slots[of] = own.slot_of(of[1])
        return self.slots[of]

    # ── resources ────────────────────────────────────────────────────────────────────

    def resource(self, kind: str, name: str) -> Lines:
        lines = self.lines.get((kind, name))
        if lines is None:
            lines = self._read_resource(kind, name)
            self.lines[kind, name] = lines
        return lines

    def row(self, lines: Lines) -> ResourceRow:
        return self.resource_row(lines.kind, lines.name)

    def queue_of(self, prefix: str) -> Range:
        """Return the range to read for the head of a queue."""
        return queue_of(prefix, self.starts.get(prefix, ""), self.windows.get(prefix, WINDOW))

    def _read_crowd(self, prefix: str, modes: list[str], limit: int = HOLDERS_READ) -> list[Found]:
        """Read a resource whose keys do not fit the window."""
        held = [
            Range(f"{line}\x1f", f"{line} ", 0 if mode == PERMIT else limit)
            for mode in modes
            for line in [k.place_key(prefix, "h", mode)]
        ]
        others, reserved = Range(f"{prefix}c", f"{prefix}h"), Range(f"{prefix}v\x1f", f"{prefix}v ")
        parts = self._need([others, *held, reserved])
        if limit and any(k.parse_place(kv.key).line == "d" for kv in parts[0].kvs):
            # A lock_delay has begun if its holder is gone, so all holders must be known.
            return self._read_crowd(prefix, modes, 0)
        return parts

    def _need(self, ranges: list[Range]) -> list[Found]:
        missing = [one for one in ranges if one not in self.known.found]
        if missing:
            self.wants.update(missing)
            raise Missing
        return [self.known.found[one] for one in ranges]

    def _read_resource(self, kind: str, name: str) -> Lines:
        lines = Lines(kind, name)
        prefix, row = lines.prefix, ResourceRow(kind, name)
        lines.start = start = self.starts.get(prefix, "")
        found, lines.queue = self._need([others_of(prefix, start), self.queue_of(prefix)])
        starts = [kv for kv in found.kvs if kv.key.startswith(f"{prefix}a\x1f")]
        if start and not starts:
            self.starts[prefix] = ""  # it has vanished: claims may wait before it
            return self._read_resource(kind, name)
        lines.stored_starts = [k.parse_place(kv.key).rank for kv in starts]
        others = found.kvs[len(starts) :]
        if len(found.kvs) < found.count:
            modes = sorted(MODES_OF_KIND[kind])
            parts = self._read_crowd(prefix, modes)
            others = [kv for part in parts for kv in part.kvs]
            for mode, part in zip(modes, parts[1:-1], strict=True):
                beyond = part.count - len(part.kvs)
                if beyond:
                    row.held[mode] = beyond
                    row.holders += beyond
        lines.is_plain = all(kv.key.startswith(f"{prefix}h\x1f") for kv in others)
        self._fill_line(lines, row)
        self._fill(lines, row, others)
        self.add_resource(row)
        lines.before = copied(row)
        return lines

    def _fill_line(self, lines: Lines, row: ResourceRow) -> None:
        """Add the waiting claims, except those whose session is being ended."""
        row.waiting = lines.queue.count - len(lines.queue.kvs)
        for kv in lines.queue.kvs:
            if not self._is_ending(kv):
                place = self.add_place(row, self._claim_at(kv))
                row.limit = row.limit or place.limit

    def _fill(self, lines: Lines, row: ResourceRow, others: list[Kv]) -> None:
        """Add everything except the waiting claims."""
        now_ms = self.instant.now_ms
        delays: list[tuple[k.PlaceKey, Kv]] = []
        held: set[tuple[str, str]] = set()
        limit = stored_limit = closed_limit = 0
        for kv in others:
            key = k.parse_place(kv.key)
            if key.line == "c":
                until_ms, closed_limit = k.read(k.Closing, kv)
                row.closed_ms = self.instant.deadline_ms(until_ms)
            elif key.line == "d":
                delays.append((key, kv))
            elif key.line == "e":
                stored_limit = k.number_from(kv)
                lines.limit_is_stored = True
            elif key.line == "h" or (key.line == "v" and not self._is_ending(kv)):
                claim = self._claim_at(kv)
                place = self.add_place(row, claim)
                limit = limit or place.limit
                if key.line == "h":
                    held.add((key.session, key.slot))
                    self._note_bound(claim)
        in_use = row.holders or row.waiting or row.reservations
        row.limit = (in_use and (stored_limit or limit or row.limit)) or closed_limit
        for key, kv in delays:
            if (key.session, key.slot) not in held:
                # Its holder's session ended with its lease: the delay begins now.
                lines.stale_delays.append(kv.key)
                span_ms, limit = k.read(k.Closing, kv)
                row.closed_ms = max(row.closed_ms, now_ms + span_ms)
                row.limit = row.limit or limit

    def _note_bound(self, claim: Claim) -> None:
        """Mark a holder whose max_hold has elapsed as due, so that the table revokes its claim."""
        if claim.until_ms:
            key = k.bound_key(claim.session, claim.n)
            if not self.known.has(key):
                self.wants.add(Range(key))
            elif self.known.get(key) is None:
                self.put(r.due_key(self.instant.now_ms, claim.session, claim.n), "")

    def _is_ending(self, kv: Kv) -> bool:
        """Return whether the session of a claim is deleted but its lease has not ended yet."""
        key = k.session_key(k.parse_place(kv.key).session)
        return self.known.has(key) and self.known.get(key) is None

    # ── afterwards ───────────────────────────────────────────────────────────────────

    def sessions(self) -> list[Session]:
        prefix = r.SESSION_PREFIX
        return [row for _, row in super().scan(prefix, r.after_prefix(prefix), FAR_MS)]

    def heirs(self, lines: Lines, count: int, gone: Collection[str]) -> Found | None:
        """Return the first waiting claims, without those that are gone; None if unknown."""
        left = [kv for kv in lines.queue.kvs if kv.key not in gone]
        heirs: list[Kv] = []
        for kv in left[:count]:
            if self._is_ending(kv):
                break
            heirs.append(kv)
        if heirs:
            # More claims may arrive behind the last one: that is not compared.
            lines.relied_end = max(lines.relied_end, f"{heirs[-1].key}\x00")
            return Found(heirs, len(heirs) + 1)
        if left or not lines.is_whole:
            return None
        lines.relied_end = k.end_of(lines.prefix)
        return Found([], 0)
