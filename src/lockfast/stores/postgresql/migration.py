"""Detect the version of the schema, and create or migrate it on first use."""

from __future__ import annotations

from typing import Final

from lockfast.errors import StoreError, StoreMisconfiguredError
from lockfast.stores.postgresql.connection import BEGIN, COMMIT, ROLLBACK, Connection
from lockfast.stores.postgresql.schema import VERSION, command, creation, statements

OLDEST: Final = 140000
"""PostgreSQL 14: SQL-standard function bodies, client_connection_check_interval."""


def version_of(connection: Connection, until_s: float) -> int:
    """Return the version of the schema in the database; 0 if there is none."""
    schema = connection.address.schema
    # Not to_regclass, which may answer from the connection's cache.
    ((found,),) = connection.run(
        "SELECT max(c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1 AND c.relname = 'meta'",
        schema,
        until_s=until_s,
    )
    if found is None:
        return 0
    ((version,),) = connection.run(f'SELECT version FROM "{schema}".meta', until_s=until_s)
    return int(version or 0)


def ensure(connection: Connection, until_s: float) -> None:
    """Create or migrate the schema if necessary. Raises StoreMisconfiguredError on failure."""
    address = connection.address
    if connection.version < OLDEST:
        raise StoreMisconfiguredError(
            address.label, f"is PostgreSQL {connection.version // 10000}", "use 14 or newer"
        )
    if connection.encoding != "UTF8":
        raise StoreMisconfiguredError(
            address.label,
            f"its encoding is {connection.encoding}",
            "use a database with the encoding UTF8",
        )
    found = version_of(connection, until_s)
    if found > VERSION:
        raise StoreMisconfiguredError(
            address.label,
            f"its schema {address.schema!r} has version {found}, this Lockfast knows {VERSION}",
            "upgrade Lockfast",
        )
    if found == VERSION:
        return
    try:
        _create(connection, until_s)
    except StoreMisconfiguredError as error:
        what = f"lacks the schema {address.schema!r}, which this role may not create"
        if found:
            what = f"its schema {address.schema!r} has version {found} and must be migrated"
        raise StoreMisconfiguredError(
            address.label,
            f"{what} ({error.what})",
            f"have the owner of the database run the output of `{command(address.schema, found)}`",
        ) from error


def _create(connection: Connection, until_s: float) -> None:
    address = connection.address
    lock = f"SELECT pg_advisory_xact_lock(hashtextextended('{address.schema}.schema', 0))"
    try:
        # Two first users must not create the schema twice.
        connection.exchange([BEGIN, (lock, ())], until_s)
        found = version_of(connection, until_s)
        if found < VERSION:
            sql = creation(address.schema, found)
            connection.exchange([(part, ()) for part in statements(sql)], until_s)
        connection.exchange([COMMIT], until_s)
    except StoreError:
        connection.exchange([ROLLBACK], until_s)
        raise
