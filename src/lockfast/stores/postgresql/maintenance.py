"""`lockfast doctor` and `lockfast reset` on PostgreSQL: check, print, repair, empty a namespace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final

from lockfast.core import rows as r
from lockfast.core.commands import WAKE_ENDED, WAKE_LOOK, Wake
from lockfast.core.rows import Claim, ResourceRow, Session
from lockfast.core.wording import counted
from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.diagnosis import Diagnosis, Maintenance
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.checkup import examine
from lockfast.stores.postgresql.connection import (
    BEGIN,
    COMMIT,
    Connection,
    Parameter,
    Result,
    Statement,
)
from lockfast.stores.postgresql.migration import version_of
from lockfast.stores.postgresql.packing import unpack_claim, unpack_resource, unpack_session
from lockfast.stores.postgresql.rebuilding import (
    LineKey,
    Repaired,
    ResourceKey,
    derive,
    disagreements,
    repair,
)
from lockfast.stores.postgresql.rows import put_claim, put_line, put_resource
from lockfast.stores.postgresql.schema import VERSION, in_schema
from lockfast.stores.postgresql.steps import notifications

TIMEOUT_S: Final = 120.0
"""A repair reads all claims of the namespace in one transaction."""
SHOWN_MAX: Final = 3
_TABLES: Final = ("sessions", "claims", "resources", "lines", "events")
_ALONE: Final[Statement] = ("SELECT pg_advisory_xact_lock(lockfast.gate_key())", ())
"""Every step takes the gate too, so until the commit no other step runs."""


class PostgresMaintenance(Maintenance):
    def __init__(self, address: Address) -> None:
        super().__init__(address.label)
        self._address = address

    def examine(self) -> Iterator[Diagnosis]:
        yield from examine(self._address)
        with self._opened() as namespace:
            if namespace.has_schema():
                namespace.run([("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())])
                yield _rows(namespace.contents())

    def repair(self) -> Iterator[Diagnosis]:
        with self._opened() as namespace:
            namespace.require_schema()
            namespace.run([BEGIN, _ALONE])
            yield from namespace.repaired()

    def reset(self) -> Iterator[Diagnosis]:
        with self._opened() as namespace:
            namespace.require_schema()
            namespace.run([BEGIN, _ALONE])
            contents = namespace.contents()
            namespace.delete_everything(contents.sessions)
        yield Diagnosis("sessions", f"{len(contents.sessions)} ended")
        yield Diagnosis("locks", f"{len(contents.resources)} freed")

    def raise_epoch(self) -> Iterator[Diagnosis]:
        with self._opened() as namespace:
            namespace.require_schema()
            sql = "SELECT epoch FROM lockfast.meta"
            flight = [(sql, ()), ("SELECT lockfast.raise_epoch(NULL)", ()), (sql, ())]
            (((before,),), _, ((after,),)) = namespace.run(flight)
        added = int(after or 0) - int(before or 0)
        yield Diagnosis("epoch", f"raised by {added}: new tokens are above the server's clock")

    def dump(self) -> Iterator[str]:
        with self._opened() as namespace:
            namespace.require_schema()
            namespace.run([("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())])
            yield from namespace.lines_of_text()

    @contextmanager
    def _opened(self) -> Iterator[_Namespace]:
        connection = Connection(self._address, monotonic() + TIMEOUT_S)
        try:
            yield _Namespace(connection)
        finally:
            connection.close()


class _Contents:
    """All rows of a namespace."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.sessions: dict[str, Session] = {}
        self.claims: list[Claim] = []
        self.resources: dict[ResourceKey, ResourceRow] = {}
        self.lines: dict[LineKey, str] = {}

    def living(self) -> int:
        """Count the sessions that have not ended."""
        return sum(
            not session.ended and session.deadline_ms > self._now_ms
            for session in self.sessions.values()
        )

    def orphans(self) -> int:
        return sum(claim.session not in self.sessions for claim in self.claims)


def _rows(contents: _Contents) -> Diagnosis:
    derived = derive(contents.claims, contents.resources)
    wrong = disagreements(derived, contents.resources, contents.lines)
    orphans = contents.orphans()
    if wrong or orphans:
        shown = ", ".join(wrong[:SHOWN_MAX]) + (" …" if len(wrong) > SHOWN_MAX else "")
        parts = [f"locks that differ from their claims: {len(wrong)} ({shown})"] if wrong else []
        parts += [f"claims without a session: {orphans}"] if orphans else []
        return Diagnosis("rows", "; ".join(parts), "bad", "run lockfast doctor --repair")
    sessions, claims = contents.living(), len(contents.claims)
    stored = f"{counted(sessions, 'session')}, {counted(claims, 'claim')}"
    return Diagnosis("rows", f"{stored}, {counted(len(contents.resources), 'lock')} in use")


class _Namespace:
    """One namespace on one connection, in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._address = connection.address
        self._name = connection.address.namespace

    def has_schema(self) -> bool:
        return version_of(self._connection, monotonic() + TIMEOUT_S) == VERSION

    def require_schema(self) -> None:
        if not self.has_schema():
            raise StoreMisconfiguredError(
                self._address.label,
                f"has no schema {self._address.schema!r} of version {VERSION}",
                "connect a client once, or run the output of `lockfast schema postgresql`",
            )

    def run(self, statements: Sequence[Statement]) -> list[Result]:
        own = [(in_schema(sql, self._address.schema), values) for sql, values in statements]
        return self._connection.exchange(own, monotonic() + TIMEOUT_S)

    def contents(self) -> _Contents:
        of = (self._name,)
        clock, sessions, claims, resources, lines = self.run(
            [
                ("SELECT lockfast.now_ms(NULL)", ()),
                ("SELECT lockfast.session_row(s) FROM lockfast.sessions s"
                 " WHERE namespace = $1", of),
                ("SELECT lockfast.claim_row(c) FROM lockfast.claims c WHERE namespace = $1", of),
                ("SELECT lockfast.resource_row(r) FROM lockfast.resources r"
                 " WHERE namespace = $1", of),
                ("SELECT json_build_array(line, kind, name, rank, session, n)"
                 " FROM lockfast.lines WHERE namespace = $1", of),
            ]
        )  # fmt: skip
        found = _Contents(int(clock[0][0] or 0))
        for values in _decoded(sessions):
            found.sessions[values[0]] = unpack_session(values)
        found.claims = [
            claim for values in _decoded(claims) if (claim := unpack_claim(values)) is not None
        ]
        for values in _decoded(resources):
            found.resources[values[0], values[1]] = unpack_resource(values)
        for line, kind, name, rank, session, n in _decoded(lines):
            found.lines[line, kind, name, rank] = r.claim_ref(session, n)
        return found

    # ── repairing ────────────────────────────────────────────────────────────────────

    def repaired(self) -> Iterator[Diagnosis]:
        contents = self.contents()
        repaired = repair(contents.claims, contents.sessions)
        gone = {(claim.session, claim.n) for claim in repaired.orphans}
        kept = [claim for claim in contents.claims if (claim.session, claim.n) not in gone]
        derived = derive(kept, contents.resources)
        wrong = disagreements(derived, contents.resources, contents.lines)
        of: list[Parameter] = [self._name]
        flight: list[Statement] = [
            ("DELETE FROM lockfast.resources WHERE namespace = $1", of),
            ("DELETE FROM lockfast.lines WHERE namespace = $1", of),
        ]
        flight += [
            ("DELETE FROM lockfast.claims WHERE namespace = $1 AND session = $2 AND n = $3",
             [self._name, claim.session, claim.n])
            for claim in repaired.orphans
        ]  # fmt: skip
        flight += [put_claim(self._name, claim) for claim in repaired.changed]
        flight += [put_resource(self._name, row) for row in derived.resources.values()]
        flight += [put_line(self._name, line, ref) for line, ref in derived.lines.items()]
        flight.append(("SELECT lockfast.raise_epoch(NULL)", ()))
        flight += self._looks(contents, repaired)
        self.run([*flight, COMMIT])
        sessions = counted(len(contents.sessions), "session")
        yield Diagnosis("repair", f"kept {sessions} and {counted(len(kept), 'claim')}")
        revoked = sum(claim.state == "revoked" for claim in repaired.changed)
        for count, what in (
            (len(wrong), f"rebuilt {counted(len(wrong), 'lock')} from claims"),
            (
                len(repaired.orphans),
                f"deleted {counted(len(repaired.orphans), 'claim')} without a session",
            ),
            (revoked, f"revoked {counted(revoked, 'claim')} of what an older claim holds"),
        ):
            if count:
                yield Diagnosis("repair", what, "note")

    def _looks(self, contents: _Contents, repaired: Repaired) -> list[Statement]:
        """Make the sessions of changed claims look at them."""
        wakes = [
            Wake(contents.sessions[claim.session].inbox, claim.session, claim.n, WAKE_LOOK)
            for claim in repaired.changed
        ]
        return notifications(wakes, "")

    # ── emptying ─────────────────────────────────────────────────────────────────────

    def delete_everything(self, sessions: dict[str, Session]) -> None:
        of = (self._name,)
        wakes = [Wake(session.inbox, id, 0, WAKE_ENDED) for id, session in sessions.items()]
        self.run(
            [
                *((f"DELETE FROM lockfast.{table} WHERE namespace = $1", of) for table in _TABLES),
                ("UPDATE lockfast.logs SET position = position + 1, watchers = 0"
                 " WHERE namespace = $1", of),
                ("SELECT lockfast.raise_epoch(NULL)", ()),
                *notifications(wakes, ""),
                COMMIT,
            ]
        )  # fmt: skip

    # ── printing ─────────────────────────────────────────────────────────────────────

    def lines_of_text(self) -> Iterator[str]:
        ((epoch, timeline, last),) = self.run(
            [("SELECT epoch, timeline, (SELECT last_value FROM lockfast.tokens)"
              " FROM lockfast.meta", ())]
        )[0]  # fmt: skip
        yield "meta: epoch, timeline, last value of the sequence"
        yield f"  {epoch}\t{timeline}\t{last}"
        for table in (*_TABLES, "logs"):
            names, rows = self.run(
                [
                    ("SELECT column_name FROM information_schema.columns"
                     " WHERE table_schema = $1 AND table_name = $2 ORDER BY ordinal_position",
                     [self._address.schema, table]),
                    (f"SELECT * FROM lockfast.{table} WHERE namespace = $1 ORDER BY 1, 2",
                     [self._name]),
                ]
            )  # fmt: skip
            columns = [str(name) for (name,) in names]
            yield f"{table}: {', '.join(columns[1:])}"
            for row in rows:
                shown = [_shown(*pair) for pair in zip(columns, row, strict=True)]
                yield "  " + "\t".join(shown[1:])


def _decoded(found: Result) -> Iterator[list[Any]]:
    for (text,) in found:
        yield json.loads(text or "null")


def _shown(column: str, value: str | None) -> str:
    """Return a value without the secrets that authenticate wakes."""
    if value is None:
        return "-"
    if column == "inbox":
        value = value.partition(" ")[0] + " ***" if value else ""
    return value.replace("\x1f", "␟")
