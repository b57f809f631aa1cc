"""The SQL of the store's schema and guards. Nothing here needs a driver."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Final

from lockfast.stores.postgresql.address import SCHEMA

MIGRATIONS: Final = ("tables.sql", "version_2.sql")
"""Each migrates from one version to the next; version 0 is a database without our tables."""
VERSION: Final = len(MIGRATIONS)


@lru_cache
def _text(name: str) -> str:
    return (files("lockfast.stores.postgresql") / "sql" / name).read_text(encoding="utf-8")


def in_schema(sql: str, schema: str) -> str:
    """Return the SQL with `lockfast.` replaced by the name of another schema."""
    if schema == SCHEMA:
        return sql
    sql = re.sub(r"\blockfast\.", f'"{schema}".', sql)
    return re.sub(r"(?<=SCHEMA IF NOT EXISTS )lockfast\b", f'"{schema}"', sql)


def creation(schema: str = SCHEMA, since: int = 0, version: int = VERSION) -> str:
    """Return SQL for one transaction that creates the schema or migrates it from `since`."""
    parts = [_text(name) for name in MIGRATIONS[since:version]]
    parts.append(_text("guard.sql"))
    parts.append(_text("functions.sql"))
    if since:
        parts.append(f"UPDATE lockfast.meta SET version = {version};\n")
    else:
        parts.append(
            "INSERT INTO lockfast.meta (version, epoch, timeline)"
            f" VALUES ({version}, 0, lockfast.timeline());\n"
            "SELECT lockfast.raise_epoch(NULL);\n"
        )
    return in_schema("\n".join(parts), schema)


def guards(schema: str = SCHEMA) -> str:
    """Return SQL for one transaction that creates what guards need, and nothing else."""
    return in_schema(_text("guard.sql"), schema)


def command(schema: str, since: int = 0) -> str:
    """Return the command that prints `creation`."""
    other = f" --schema {schema}" if schema != SCHEMA else ""
    return f"lockfast schema postgresql{other}" + (f" --since {since}" if since else "")


def statements(sql: str) -> list[str]:
    """Split SQL at the semicolons that end statements; those inside $$ … $$ do not."""
    found, start, quoted = [], 0, False
    for mark in re.finditer(r"\$\$|--[^\n]*|;", sql):
        if mark[0] == "$$":
            quoted = not quoted
        elif mark[0] == ";" and not quoted:
            found.append(sql[start : mark.start()].strip())
            start = mark.end()
    return [part for part in found if part]
