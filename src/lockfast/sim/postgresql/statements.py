"""An interpreter for the store's SQL: calls of functions, and statements on one table.

It parses the shipped text. A statement that it does not know is an error of the model, not of the
store. A prepared statement is a generator over a transaction, like the functions.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from lockfast.sim.postgresql import functions as f
from lockfast.sim.postgresql.database import TABLES, Key, Row, SqlError, Yields
from lockfast.sim.postgresql.functions import Call, Found, Run
from lockfast.sim.postgresql.locks import Request

Values: TypeAlias = Sequence[Any]
Value: TypeAlias = Callable[[Values], Any]
"""A constant or a parameter of a statement."""
Condition: TypeAlias = Callable[[Row, Values], bool]
Prepared: TypeAlias = Callable[[Call, Values], Run]

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@lru_cache
def prepare(sql: str) -> Prepared:
    """Return the generator function that executes a statement."""
    for pattern, make in _STATEMENTS:
        found = re.fullmatch(pattern, sql, re.DOTALL)
        if found is not None:
            return make(*found.groups())
    raise AssertionError(f"the model does not know this statement: {sql}")


def _value(text: str) -> Value:
    text = text.strip()
    if text[0] == "$":
        place = int(text[1:]) - 1
        return lambda values: values[place]
    constant: Any = {"NULL": None, "true": True, "false": False}.get(text)
    if text[0] == "'":
        constant = text[1:-1]
    elif text.isdecimal():
        constant = int(text)
    return lambda values: constant


def _values(text: str) -> list[Value]:
    return [_value(part) for part in text.split(",")] if text else []


def _condition(text: str) -> Condition:
    """Return the test for a WHERE clause, a conjunction."""
    tests: list[tuple[str, Callable[[Any, Any], bool], Value]] = []
    for part in text.split(" AND "):
        words = re.sub(r"^[cs]\.", "", part.strip()).split(maxsplit=2)
        if len(words) == 1:
            tests.append((words[0], operator.is_, lambda values: True))
        else:
            column, sign, value = words
            tests.append((column, _COMPARISONS[sign], _value(value)))
    return lambda row, values: all(test(row[name], of(values)) for name, test, of in tests)


# ── functions ────────────────────────────────────────────────────────────────────────


def _function(name: str, arguments: str, only: str | None) -> Prepared:
    run, given = f.FUNCTIONS[name], _values(arguments)

    def call_it(call: Call, values: Values) -> Run:
        found = yield from run(call, *[value(values) for value in given])
        return [row for row in found if row[0] != "clock"] if only else found

    return call_it


def _draw_token(call: Call, values: Values) -> Run:
    token = yield from f.draw_token(call, values[0])
    return [(token,)]


def _notify(call: Call, values: Values) -> Run:
    yield None
    call.tx.notices[values[0], values[1]] = None
    return [("",)]


def _try_to_reap(call: Call, values: Values) -> Run:
    taken = yield Request(f.reaper_key(values[0]), is_try=True)
    return [(bool(taken),)]


# ── statements on one table ──────────────────────────────────────────────────────────


def _insert(table: str, given: str, conflict: str | None, changes: str | None) -> Prepared:
    columns, key = TABLES[table].columns, TABLES[table].key_of
    made = _values(given)
    changed = [part.split(" = ")[0].strip() for part in (changes or "").split(",") if part]

    def insert(call: Call, values: Values) -> Run:
        row = dict(zip(columns, (value(values) for value in made), strict=True))
        before = yield from call.tx.locked(table, key(row))
        if before is None:
            call.tx.changes[table, key(row)] = row
        elif conflict is None:
            raise SqlError("23505", f"duplicate key in {table}: {key(row)}")
        elif changed:
            new = {column: row[column] for column in changed}
            yield from call.tx.update(table, key(row), **new)
        return []

    return insert


def _matching(
    call: Call, table: str, matches: Condition, values: Values
) -> Generator[Yields, Any, list[Key]]:
    """Lock the rows that match, and return the keys of those that still match then."""
    yield None
    found = []
    for candidate in [row for row in call.tx.rows(table) if matches(row, values)]:
        key = TABLES[table].key_of(candidate)
        row = yield from call.tx.locked(table, key)
        if row is not None and matches(row, values):
            found.append(key)
    return found


def _delete(table: str, where: str) -> Prepared:
    matches = _condition(where)

    def delete(call: Call, values: Values) -> Run:
        for key in (yield from _matching(call, table, matches, values)):
            yield from call.tx.delete(table, *key)
        return []

    return delete


def _update(table: str, changes: str, where: str) -> Prepared:
    matches = _condition(where)
    new = {
        column.strip(): _value(value)
        for column, value in (part.split(" = ") for part in changes.split(","))
    }

    def update(call: Call, values: Values) -> Run:
        for key in (yield from _matching(call, table, matches, values)):
            columns = {column: value(values) for column, value in new.items()}
            yield from call.tx.update(table, key, **columns)
        return []

    return update


def _select(columns: str, table: str, where: str, order: str, down: str, most: str) -> Prepared:
    matches, limit = _condition(where), _value(most)
    shown = _EXPRESSIONS.get(columns)
    names = columns.split(", ")

    def select(call: Call, values: Values) -> Run:
        yield None
        rows = [row for row in call.tx.rows(table) if matches(row, values)]
        rows.sort(key=lambda row: row[order], reverse=bool(down.strip()))
        rows = rows[: limit(values)]
        if shown is not None:
            return [shown(call, row) for row in rows]
        return [tuple(row[name] for name in names) for row in rows]

    return select


def _least(column: str, table: str, where: str) -> Prepared:
    matches = _condition(where)

    def least(call: Call, values: Values) -> Run:
        yield None
        found = [row[column] for row in call.tx.rows(table) if matches(row, values)]
        return [(min(found, default=None),)]

    return least


def _show_claim(call: Call, row: Row) -> tuple[Any, ...]:
    return f.claim_key(row["session"], row["n"]), f.claim_row(row)


def _show_session(call: Call, row: Row) -> tuple[Any, ...]:
    count = sum(
        claim["session"] == row["id"]
        and claim["namespace"] == row["namespace"]
        and claim["state"] in ("holding", "waiting")
        for claim in call.tx.rows("claims")
    )
    return row["id"], f.session_row(row), count


_EXPRESSIONS: Final[dict[str, Callable[[Call, Row], tuple[Any, ...]]]] = {
    "'c' || E'\\x1f' || c.session || E'\\x1f' || lpad(to_hex(c.n), 16, '0'),"
    " lockfast.claim_row(c)": _show_claim,
    "s.id, lockfast.session_row(s), (SELECT count(*) FROM lockfast.claims c"
    " WHERE c.namespace = s.namespace AND c.session = s.id"
    " AND c.state IN ('holding', 'waiting'))": _show_session,
}
"""Select lists that are more than column names."""

_STATEMENTS: Final[list[tuple[str, Callable[..., Prepared]]]] = [
    (r"SELECT lockfast\.draw_token\(\$1\)", lambda: _draw_token),
    (r"SELECT pg_notify\(\$1, \$2\)", lambda: _notify),
    (
        r"SELECT pg_try_advisory_xact_lock\(lockfast\.reaper_key\(\$1\)\)",
        lambda: _try_to_reap,
    ),
    (
        r"SELECT (?:\* FROM |claims, checksum FROM |)lockfast\.(\w+)\(([^()]*)\)"
        r"( WHERE key <> 'clock')?",
        _function,
    ),
    (
        r"INSERT INTO lockfast\.(\w+) VALUES \((.*?)\)"
        r"( ON CONFLICT.*? DO (?:NOTHING|UPDATE SET (.*)))?",
        _insert,
    ),
    (r"DELETE FROM lockfast\.(\w+) WHERE (.*)", _delete),
    (r"UPDATE lockfast\.(\w+) SET (.*) WHERE (.*)", _update),
    (
        r"SELECT (.*) FROM lockfast\.(\w+)(?: [cs])? WHERE (.*) ORDER BY (?:[cs]\.)?(\w+)( DESC| |)"
        r" LIMIT (\S+)",
        _select,
    ),
    (r"SELECT min\((\w+)\) FROM lockfast\.(\w+) WHERE (.*)", _least),
]


def as_result(found: Found) -> list[tuple[str | None, ...]]:
    """Return rows as a client receives them: every value as text."""
    return [tuple(_as_text(value) for value in row) for row in found]


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(value)
