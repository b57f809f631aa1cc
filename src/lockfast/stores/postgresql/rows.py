"""The lock table's rows during one step, read and written inside one transaction.

`core.table` asks for rows by key. Most were loaded together with the step's locks; missing ones
are read on demand. The locking rules (sql/functions.sql) are enforced here:

  - a resource is read only under its lock, and a claim is changed only under the locks of all
    its places. Anything that is not locked raises `NeedLocks`: the step takes these locks,
    forgets what it has read, and runs again;
  - a session is opened, ended and set to watching only under its exclusive lock.

Some rows of the table do not exist in the database. The shard's row `m` is composed of the
sequences and the log's state. What is due (`d`) and which sessions watch (`x`) is found by index.
Count, checksum and seen numbers of a session are not columns: they follow from the claims. A
released claim leaves its number behind until a keep-alive says that all lower ones are finished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import Event
from lockfast.core.lines import FAR_MS
from lockfast.core.rows import Claim, Meta, ResourceRow, Row, Session
from lockfast.core.table import Limits
from lockfast.stores.postgresql import packing
from lockfast.stores.postgresql.connection import Parameter, Result, Statement, as_json

US: Final = r.SEPARATOR
LOG_KEPT: Final = 1000
"""The minimum number of log entries that are kept while the log is kept."""
LOG_TRIMMED_EVERY: Final = 100
WINDOW: Final = 64
"""How many rows of a line are read at a time."""
CLAIMS_MAX: Final = Limits().claims_max
LAST_RANK: Final = "\x7f"
"""Sorts after every rank."""

Resource = tuple[str, str]
Query = Callable[..., Result]
"""Run one SQL statement with its parameters; `lockfast.` stands for the schema."""


class NeedLocks(Exception):
    """The step needs locks that it does not have."""

    def __init__(
        self,
        resources: Iterable[Resource] = (),
        exclusive: Iterable[str] = (),
        *,
        alone: bool = False,
    ) -> None:
        self.resources = frozenset(resources)
        self.exclusive = frozenset(exclusive)
        self.alone = alone


class Locked(NamedTuple):
    """The locks of a step; `resources` is None if it only reads."""

    resources: frozenset[Resource] | None
    exclusive: frozenset[str] = frozenset()
    alone: bool = False
    """The step holds the gate exclusively."""


class LogState(NamedTuple):
    position: int = 0
    until_ms: int = 0
    watchers: int = 0


class _Line:
    """One line of one resource: what has been read, and what this step changed."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        """Ranks and claims up to `below`, with this step's changes."""
        self.below = ""
        self.is_complete = False
        self.added: dict[str, str] = {}
        self.removed: set[str] = set()

    def knows(self, rank: str) -> bool:
        return self.is_complete or rank <= self.below


class StepRows:
    """The row port of `core.table` for one step."""

    def __init__(
        self, query: Query, namespace: str, locked: Locked, command: c.Command | None = None
    ) -> None:
        self._query = query
        self._namespace = namespace
        self._locked = locked
        self._command = command
        self._rows: dict[str, Any] = {}
        self._stored: dict[str, list[Any]] = {}
        """The columns, as stored in the database."""
        self._changed: dict[str, None] = {}
        self._lines: dict[str, _Line] = {}
        self._unaccounted = getattr(command, "session", "")
        self.log = LogState()
        self.logs = False
        self.meta = Meta(due_ms=FAR_MS)
        self.now_ms = self.wall_us = 0
        self.is_due = False
        """Something has expired and has not been reaped."""
        self.due: list[str] = []
        """Keys of what is due, as the reaping step found it."""
        self._events: list[Event] = []
        self._tokens: list[int] = []

    # ── loading ──────────────────────────────────────────────────────────────────────

    def load(
        self,
        found: Result,
        sessions: Iterable[str] = (),
        resources: Iterable[Resource] = (),
        claims: Iterable[tuple[str, int]] = (),
    ) -> None:
        """Add rows from `lockfast.load`; what was requested and is absent becomes None."""
        for key, text in found:
            assert key is not None
            values: Any = json.loads(text or "null")
            if key == "clock":
                self.now_ms, self.wall_us, self.is_due, *log = values
                if log[0] is not None:
                    self.log = LogState(*log)
                self.logs = self.log.watchers > 0 or self.log.until_ms > self.now_ms
            elif key == "drawn":
                self.meta.position = values[0] - 1
                self._tokens.append(values[1])
            else:
                self._take(key, values)
        for session in sessions:
            self._rows.setdefault(r.session_key(session), None)
        for claim in claims:
            self._rows.setdefault(r.claim_key(*claim), None)
        self.note_loaded(resources)

    def note_loaded(self, resources: Iterable[Resource]) -> None:
        """Record that these resources were loaded, if they exist, with the heads of their lines."""
        for kind, name in resources:
            row = self._rows.setdefault(r.resource_key(kind, name), None)
            self._note_complete(kind, name, row)

    def places_of(self, session: str, n: int) -> list[Resource]:
        """Return the resources of a loaded claim."""
        claim = self._rows.get(r.claim_key(session, n))
        return [place[:2] for place in claim.places] if claim is not None else []

    def _take(self, key: str, values: Any) -> None:
        family = key[0]
        if family in "hvw":
            prefix, rank = key.rsplit(US, 1)
            line = self._line(f"{prefix}{US}")
            line.known[rank] = r.claim_ref(*values)
            line.below = max(line.below, rank)
            return
        if key in self._rows:
            return
        self._stored[key] = values
        if family == "s":
            self._rows[key] = packing.unpack_session(values)
        elif family == "c":
            self._rows[key] = packing.unpack_claim(values)
        else:
            self._rows[key] = packing.unpack_resource(values)

    def _note_complete(self, kind: str, name: str, row: ResourceRow | None) -> None:
        counts = {"w": 0, "h": 0, "v": 0}
        if row is not None:
            counts = {
                "w": row.waiting,
                "h": 0 if row.sole else row.holders,
                "v": row.reservations,
            }
        for letter, count in counts.items():
            line = self._line(r.line_prefix(letter, kind, name))
            line.is_complete = len(line.known) == count

    def _line(self, prefix: str) -> _Line:
        line = self._lines.get(prefix)
        if line is None:
            line = self._lines[prefix] = _Line()
        return line

    # ── the row port ─────────────────────────────────────────────────────────────────

    def get(self, key: str) -> Any:
        family = key[0]
        if family == "m":
            return None  # disables `core.shortcut`, which allocates tokens from this row
        if family == "r":
            self._need([_resource_of(key)])
        if key not in self._rows:
            self._fetch(key)
        row = self._rows[key]
        if family == "c" and row is not None and isinstance(self._command, c.Break):
            # A deadlock is real only if none of its claims changes while it is checked.
            self._need_places_of(key, row)
        if family == "s" and row is not None and row.id == self._unaccounted:
            self._unaccounted = ""
            self._account_for(row)
        return row

    def _fetch(self, key: str) -> None:
        family, first, *rest = key.split(US)
        if family == "r":
            self._load_resources([(first, rest[0])])
            return
        claims = [(first, int(rest[0], 16))] if family == "c" else []
        sessions = [first] if family == "s" else []
        found = self._query(
            "SELECT * FROM lockfast.load_claims($1, $2, $3)",
            self._namespace, as_json(claims), as_json(sessions),
        )  # fmt: skip
        self.load(found, sessions, (), claims)

    def _load_resources(self, resources: Sequence[Resource]) -> None:
        found = self._query(
            "SELECT * FROM lockfast.load($1, '[]', $2, '[]', false, NULL) WHERE key <> 'clock'",
            self._namespace, as_json(resources),
        )  # fmt: skip
        self.load(found, (), resources)

    def _account_for(self, session: Session) -> None:
        """Fill in what the command needs to know about its own session."""
        command = self._command
        if isinstance(command, c.Renew):
            session.claims, session.checksum = self.count_claims(session.id)
        elif isinstance(command, c.Enter | c.Leave):
            # Only the command's own claim number matters.
            n = command.n
            key = r.claim_key(session.id, n)
            if key not in self._rows:
                self._fetch(key)
            lowest = session.highest + 1
            session.highest = n if n < lowest or key in self._stored else n - 1
            if n - lowest >= CLAIMS_MAX:  # otherwise it cannot have that many
                session.claims, _ = self.count_claims(session.id)

    def put(self, key: str, row: Row) -> None:
        family = key[0]
        if family in "dx":
            return
        if family == "m":
            assert isinstance(row, Meta)
            self.meta = row
            return
        if family in "hvw":
            assert isinstance(row, str)
            self._put_in_line(key, row)
            return
        if family == "c":
            assert isinstance(row, Claim)
            self._need_places_of(key, row)
        self._rows[key] = row
        self._changed[key] = None

    add = put

    def delete(self, key: str) -> None:
        family = key[0]
        if family in "dx":
            return
        if family in "hvw":
            prefix, rank = key.rsplit(US, 1)
            line = self._line(f"{prefix}{US}")
            line.known.pop(rank, None)
            if line.added.pop(rank, None) is None:
                line.removed.add(rank)
            return
        if family == "c":
            self._need_places_of(key, self._rows.get(key))
        self._rows[key] = None
        self._changed[key] = None

    def _put_in_line(self, key: str, ref: str) -> None:
        prefix, rank = key.rsplit(US, 1)
        line = self._line(f"{prefix}{US}")
        if line.knows(rank):
            line.known[rank] = ref
        if rank in line.removed:
            line.removed.remove(rank)
        else:
            line.added[rank] = ref

    def _need(self, resources: Iterable[Resource]) -> None:
        locked = self._locked.resources
        if locked is not None:
            missing = [resource for resource in resources if resource not in locked]
            if missing:
                raise NeedLocks(missing)

    def _need_places_of(self, key: str, claim: Claim | None) -> None:
        if claim is not None:
            self._need(place[:2] for place in claim.places)
        if key in self._stored and self._stored[key][3] != packing.FINISHED:
            # Its places before this step, in case it has lost them.
            self._need((kind, name) for kind, name, *_ in json.loads(self._stored[key][2]))

    # ── scanning ─────────────────────────────────────────────────────────────────────

    def scan(
        self, start: str, stop: str, limit: int, reverse: bool = False
    ) -> list[tuple[str, Any]]:
        family = start[0]
        if family in "hvw":
            return self._scan_line(start, stop, limit, reverse)
        if family == "c":
            return self._scan_claims(start.split(US)[1], limit)
        if family == "d":
            due, self.due = self.due, []
            return [(key, "") for key in due]
        if family == "x":
            return self._scan_watchers()
        if family == "r":
            return self._scan_resources(start, stop, limit)
        return self._scan_sessions(start, limit)

    def _scan_line(self, start: str, stop: str, limit: int, reverse: bool) -> list[tuple[str, Any]]:
        letter, kind, name, lowest = start.split(US, 3)
        prefix = r.line_prefix(letter, kind, name)
        highest = stop[len(prefix) :] if stop.startswith(prefix) else LAST_RANK
        line = self._line(prefix)
        if not line.is_complete and not lowest and not reverse:
            self._read_window(line, letter, kind, name, highest, limit)
        elif not line.is_complete:
            self._read_part(line, (letter, kind, name), lowest, highest, limit, reverse)
            return self._merged(line, prefix, lowest, highest, limit, reverse)
        ranks = sorted((rank for rank in line.known if lowest <= rank < highest), reverse=reverse)[
            :limit
        ]
        return [(prefix + rank, line.known[rank]) for rank in ranks]

    def _read_window(
        self, line: _Line, letter: str, kind: str, name: str, highest: str, limit: int
    ) -> None:
        """Read more from the head, until there are enough rows or the end is reached."""
        while not line.is_complete and line.below < highest:
            if sum(rank < highest for rank in line.known) >= limit:
                return
            most = max(WINDOW, min(limit, 10 * WINDOW))
            found = self._query(
                "SELECT * FROM lockfast.load_line($1, $2, $3, $4, $5, $6)",
                self._namespace, kind, name, letter, line.below, most,
            )  # fmt: skip
            ranks = [key[2:] for key, _ in found if key is not None and key[0] == "l"]
            for key, text in found:
                assert key is not None
                assert text is not None
                if key[0] != "l":
                    self._take(key, json.loads(text))
                elif key[2:] not in line.removed:
                    line.known[key[2:]] = r.claim_ref(*json.loads(text))
            line.is_complete = len(ranks) < most
            line.below = max([line.below, *ranks])
            line.known |= {rank: ref for rank, ref in line.added.items() if line.knows(rank)}

    def _read_part(
        self,
        line: _Line,
        of: tuple[str, str, str],
        lowest: str,
        highest: str,
        limit: int,
        reverse: bool,
    ) -> None:
        letter, kind, name = of
        bound = lowest.rstrip("\x00")
        found = self._query(
            f"SELECT rank, session, n FROM lockfast.lines WHERE namespace = $1 AND kind = $2"
            f" AND name = $3 AND line = $4 AND rank {'>' if bound != lowest else '>='} $5"
            f" AND rank < $6 ORDER BY rank {'DESC' if reverse else ''} LIMIT $7",
            self._namespace, kind, name, letter, bound, highest,
            min(limit + len(line.removed), FAR_MS),
        )  # fmt: skip
        self._part = {
            str(rank): r.claim_ref(str(session), int(n or 0)) for rank, session, n in found
        }

    def _merged(
        self, line: _Line, prefix: str, lowest: str, highest: str, limit: int, reverse: bool
    ) -> list[tuple[str, Any]]:
        both = {rank: ref for rank, ref in self._part.items() if rank not in line.removed}
        both |= {rank: ref for rank, ref in line.added.items() if lowest <= rank < highest}
        return [(prefix + rank, both[rank]) for rank in sorted(both, reverse=reverse)[:limit]]

    def _scan_claims(self, session: str, limit: int) -> list[tuple[str, Any]]:
        found = self._query(
            "SELECT 'c' || E'\\x1f' || c.session || E'\\x1f' || lpad(to_hex(c.n), 16, '0'),"
            " lockfast.claim_row(c) FROM lockfast.claims c"
            " WHERE c.namespace = $1 AND c.session = $2 AND c.state <> 'finished'"
            " ORDER BY c.n LIMIT $3",
            self._namespace, session, min(limit, FAR_MS),
        )  # fmt: skip
        self.load(found)
        claims = [(key, self._rows[key]) for key, _ in found if key is not None]
        claims = [(key, claim) for key, claim in claims if claim is not None]
        if self._locked.resources is not None:
            # The caller is about to end these claims: take all the locks together.
            self._need(place[:2] for _, claim in claims for place in claim.places)
        return claims

    def _scan_watchers(self) -> list[tuple[str, Any]]:
        found = self._query(
            "SELECT id FROM lockfast.sessions WHERE namespace = $1 AND watching"
            " ORDER BY id LIMIT 1000",
            self._namespace,
        )
        watching = {str(id) for (id,) in found}
        for key, row in self._rows.items():
            if key[0] == "s" and key in self._changed:
                watching.discard(key[2:])
                if row is not None and row.watching:
                    watching.add(key[2:])
        return [(r.WATCHER_PREFIX + id, "") for id in sorted(watching)]

    def _scan_resources(self, start: str, stop: str, limit: int) -> list[tuple[str, Any]]:
        _, kind, lowest = start.split(US, 2)
        bound = lowest.rstrip("\x00")
        found = self._query(
            "SELECT name FROM lockfast.resources WHERE namespace = $1 AND kind = $2"
            f" AND name {'>' if bound != lowest else '>='} $3 AND name < $4 ORDER BY name LIMIT $5",
            self._namespace, kind, bound, stop.split(US, 2)[2], limit,
        )  # fmt: skip
        names = [str(name) for (name,) in found]
        missing = [(kind, name) for name in names if r.resource_key(kind, name) not in self._rows]
        if missing:
            self._load_resources(missing)
        rows = ((key, self._rows[key]) for key in (r.resource_key(kind, name) for name in names))
        return [(key, row) for key, row in rows if row is not None]

    def _scan_sessions(self, start: str, limit: int) -> list[tuple[str, Any]]:
        lowest = start.split(US, 1)[1]
        bound = lowest.rstrip("\x00")
        found = self._query(
            "SELECT s.id, lockfast.session_row(s), (SELECT count(*) FROM lockfast.claims c"
            " WHERE c.namespace = s.namespace AND c.session = s.id"
            " AND c.state IN ('holding', 'waiting')) FROM lockfast.sessions s"
            f" WHERE s.namespace = $1 AND s.id {'>' if bound != lowest else '>='} $2"
            " ORDER BY s.id LIMIT $3",
            self._namespace, bound, limit,
        )  # fmt: skip
        rows = []
        for id, text, claims in found:
            session = packing.unpack_session(json.loads(text or ""))
            session.claims = int(claims or 0)
            rows.append((r.session_key(str(id)), session))
        return rows

    # ── tokens and numbers ───────────────────────────────────────────────────────────

    def next_token(self, block: int) -> int:
        """Draw tokens, under the locks of what is granted, so that they increase there."""
        if block == 1 and self._tokens:
            return self._tokens.pop()
        if block > 1 and not self._locked.alone:
            raise NeedLocks(alone=True)
        self._tokens.clear()  # those drawn before are smaller than this one
        ((token,),) = self._query("SELECT lockfast.draw_token($1)", block)
        return int(token or 0)

    def is_behind(self, by_us: int) -> bool:
        """Return whether tokens lag further than this behind the server's wall clock."""
        return bool(self._tokens) and self._tokens[-1] < self.wall_us - by_us

    def count_claims(self, session: str) -> tuple[int, int]:
        """Return count and checksum of a session's claims, as they were before this step."""
        ((count, checksum),) = self._query(
            "SELECT claims, checksum FROM lockfast.account($1, $2)", self._namespace, session
        )
        return int(count or 0), int(checksum or 0)

    # ── the log ──────────────────────────────────────────────────────────────────────

    def append(self, event: Event) -> None:
        position = self.log.position + len(self._events) + 1
        self._events.append(event._replace(position=position))

    def events(self, after: int, limit: int) -> list[Event]:
        found = self._query(
            "SELECT event FROM lockfast.events WHERE namespace = $1 AND position > $2"
            " ORDER BY position LIMIT $3",
            self._namespace, after, limit,
        )  # fmt: skip
        return [Event(*json.loads(text or "")) for (text,) in found]

    def oldest(self) -> int | None:
        ((oldest,),) = self._query(
            "SELECT min(position) FROM lockfast.events WHERE namespace = $1", self._namespace
        )
        return None if oldest is None else int(oldest)

    # ── writing ──────────────────────────────────────────────────────────────────────

    def statements(self) -> list[Statement]:
        """Return the statements that write the step's changes; empty if there are none."""
        found: list[Statement] = []
        for key in self._changed:
            row = self._rows[key]
            if key[0] == "s":
                self._write_session(key, row, found)
            elif key[0] == "c":
                self._write_claim(key, row, found)
            else:
                self._write_resource(key, row, found)
        self._bury_own_number(found)
        for prefix, line in self._lines.items():
            self._write_line(prefix, line, found)
        self._write_log(found)
        return found

    def _write_session(self, key: str, row: Session | None, found: list[Statement]) -> None:
        stored = self._stored.get(key)
        of: list[Parameter] = [self._namespace, key[2:]]
        if row is None:
            if stored is not None:
                self._need_exclusive(key[2:])
                found.append((_FORGET_SESSION, of))
            return
        lowest = stored[9] if stored is not None else 1
        renews = isinstance(self._command, c.Renew) and self._command.session == row.id
        if renews and not row.ended:
            lowest = max(lowest, row.highest + 1)
        columns = packing.pack_session(row, lowest)
        if columns == stored:
            return
        if not renews or row.ended:
            self._need_exclusive(row.id)
        found.append((_PUT_SESSION, [self._namespace, *columns]))
        if row.ended and not row.ending:
            found.append((_FORGET_CLAIMS, of))
        elif stored is not None and lowest > stored[9]:
            found.append((_FORGET_NUMBERS, [*of, lowest]))

    def _need_exclusive(self, session: str) -> None:
        if session not in self._locked.exclusive:
            raise NeedLocks(exclusive=[session])

    def _write_claim(self, key: str, row: Claim | None, found: list[Statement]) -> None:
        _, session, n = key.split(US)
        of: list[Parameter] = [self._namespace, session, int(n, 16)]
        if row is not None:
            found.append(put_claim(self._namespace, row))
        elif key not in self._stored:
            found.append((_BURY_NUMBER, of))
        elif self._has_ended(session):
            found.append((_DELETE_CLAIM, of))
        else:
            found.append((_FINISH_CLAIM, of))

    def _has_ended(self, session: str) -> bool:
        row = self._rows.get(r.session_key(session))
        return row is not None and bool(row.ended)

    def _bury_own_number(self, found: list[Statement]) -> None:
        """Keep the number of a claim that was refused a place, or released before it entered."""
        command = self._command
        if not isinstance(command, c.Enter | c.Leave):
            return
        session = self._rows.get(r.session_key(command.session))
        key = r.claim_key(command.session, command.n)
        if (
            session is None
            or session.ended
            or key in self._stored
            or key in self._changed
            or r.session_key(command.session) not in self._changed
        ):
            return
        stored = self._stored.get(r.session_key(command.session))
        lowest = stored[9] if stored is not None else 1
        if lowest <= command.n <= session.highest:
            found.append((_BURY_NUMBER, [self._namespace, command.session, command.n]))

    def _write_resource(self, key: str, row: ResourceRow | None, found: list[Statement]) -> None:
        stored = self._stored.get(key)
        if row is None:
            if stored is not None:
                found.append((_DELETE_RESOURCE, [self._namespace, *_resource_of(key)]))
            return
        columns = packing.pack_resource(row)
        if columns != stored:
            found.append(put_resource(self._namespace, row))

    def _write_line(self, prefix: str, line: _Line, found: list[Statement]) -> None:
        letter, kind, name, _ = prefix.split(US)
        of: list[Parameter] = [self._namespace, kind, name, letter]
        for rank in line.removed:
            found.append((_DELETE_PLACE, [*of, rank]))
        for rank, ref in line.added.items():
            found.append(put_line(self._namespace, (letter, kind, name, rank), ref))

    def _write_log(self, found: list[Statement]) -> None:
        position = self.log.position
        if self._events or self.meta.watchers != self.log.watchers:
            if not self._locked.alone:
                raise NeedLocks(alone=True)
            end = position + len(self._events)
            found.append((_PUT_LOG, [self._namespace, end, self.meta.watchers]))
        for event in self._events:
            found.append((_PUT_EVENT, [self._namespace, event.position, as_json(event)]))
            if event.position % LOG_TRIMMED_EVERY == 0:
                found.append((_TRIM_LOG, [self._namespace, event.position - LOG_KEPT]))


def put_claim(namespace: str, claim: Claim) -> Statement:
    return _PUT_CLAIM, [namespace, *packing.pack_claim(claim)]


def put_resource(namespace: str, row: ResourceRow) -> Statement:
    return _PUT_RESOURCE, [namespace, *packing.pack_resource(row)]


def put_line(namespace: str, line: tuple[str, str, str, str], ref: str) -> Statement:
    """Return the statement for a claim's row in a line, given as letter, kind, name and rank."""
    letter, kind, name, rank = line
    return _PUT_PLACE, [namespace, kind, name, letter, rank, *r.parse_ref(ref)]


def _resource_of(key: str) -> Resource:
    _, kind, name = key.split(US, 2)
    return kind, name


def _numbered(count: int, first: int = 1) -> str:
    return ", ".join(f"${i}" for i in range(first, first + count))


_PUT_SESSION: Final = (
    f"INSERT INTO lockfast.sessions VALUES ({_numbered(15)}) ON CONFLICT (namespace, id) DO UPDATE"
    " SET deadline_ms = excluded.deadline_ms, renewals = excluded.renewals,"
    " lowest = excluded.lowest, watching = excluded.watching, ended = excluded.ended,"
    " by = excluded.by, ending = excluded.ending"
)
_FORGET_SESSION: Final = "DELETE FROM lockfast.sessions WHERE namespace = $1 AND id = $2"
_FORGET_CLAIMS: Final = "DELETE FROM lockfast.claims WHERE namespace = $1 AND session = $2"
_FORGET_NUMBERS: Final = (
    "DELETE FROM lockfast.claims WHERE namespace = $1 AND session = $2 AND n < $3"
    " AND state = 'finished'"
)
_CLAIM_COLUMNS: Final = (
    "places", "state", "rank", "actor", "priority", "entered_ms", "token", "granted_ms",
    "until_ms", "max_hold_ms", "lock_delay_ms", "block", "value", "passed", "step", "wants",
    "reason", "by", "window_ms", "due_ms",
)  # fmt: skip
_PUT_CLAIM: Final = (
    f"INSERT INTO lockfast.claims VALUES ({_numbered(23)})"
    " ON CONFLICT (namespace, session, n) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _CLAIM_COLUMNS)
)
_DELETE_CLAIM: Final = (
    "DELETE FROM lockfast.claims WHERE namespace = $1 AND session = $2 AND n = $3"
)
_FINISH_CLAIM: Final = (
    "UPDATE lockfast.claims SET state = 'finished', places = '[]', rank = '', actor = '',"
    " value = NULL, due_ms = 0"
    " WHERE namespace = $1 AND session = $2 AND n = $3"
)
_BURY_NUMBER: Final = (
    "INSERT INTO lockfast.claims VALUES ($1, $2, $3, '[]', 'finished', '', '', 0, 0, 0, 0, 0, 0,"
    " 0, 1, NULL, 0, 0, '', '', '', 0, 0) ON CONFLICT DO NOTHING"
)
_PUT_RESOURCE: Final = (
    f"INSERT INTO lockfast.resources VALUES ({_numbered(13)})"
    " ON CONFLICT (namespace, kind, name) DO UPDATE SET "
    + ", ".join(
        f"{name} = excluded.{name}"
        for name in (
            "held", "reserved", "holders", "waiting", "reservations", "sole", "converting",
            "size", "closed_ms", "retained",
        )
    )
)  # fmt: skip
_DELETE_RESOURCE: Final = (
    "DELETE FROM lockfast.resources WHERE namespace = $1 AND kind = $2 AND name = $3"
)
_PUT_PLACE: Final = (
    f"INSERT INTO lockfast.lines VALUES ({_numbered(7)})"
    " ON CONFLICT (namespace, kind, name, line, rank) DO UPDATE"
    " SET session = excluded.session, n = excluded.n"
)
_DELETE_PLACE: Final = (
    "DELETE FROM lockfast.lines WHERE namespace = $1 AND kind = $2 AND name = $3 AND line = $4"
    " AND rank = $5"
)
_PUT_LOG: Final = (
    "INSERT INTO lockfast.logs VALUES ($1, $2, 0, $3) ON CONFLICT (namespace) DO UPDATE"
    " SET position = excluded.position, watchers = excluded.watchers"
)
_PUT_EVENT: Final = "INSERT INTO lockfast.events VALUES ($1, $2, $3)"
_TRIM_LOG: Final = "DELETE FROM lockfast.events WHERE namespace = $1 AND position <= $2"
