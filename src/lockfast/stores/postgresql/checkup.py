"""`lockfast doctor` for a PostgreSQL server: is it safe for locks, and what would it lose?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from time import monotonic
from typing import Final

from lockfast.errors import StoreError
from lockfast.stores.diagnosis import Diagnosis
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.connection import Connection
from lockfast.stores.postgresql.migration import OLDEST, version_of
from lockfast.stores.postgresql.schema import VERSION, command, in_schema

TIMEOUT_S: Final = 10.0
CLOCK_MS_MAX: Final = 1000
DEAD_ROWS_MAX: Final = 1_000_000
SIZE_MAX: Final = 500_000_000
FILLFACTOR_MIN: Final = 90
"""Below this, row versions of earlier steps are not pruned before a page counts as full."""
HOT_SHARE_MIN: Final = 0.8


def examine(address: Address) -> Iterator[Diagnosis]:
    """Run all checks without changing anything."""
    connection = Connection(address, monotonic() + TIMEOUT_S)
    try:
        yield from _Checkup(connection).findings()
    finally:
        connection.close()


class _Checkup:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._address = connection.address

    def findings(self) -> Iterator[Diagnosis]:
        yield self._server()
        yield self._durability()
        yield self._replication()
        yield self._pooler()
        yield self._clock()
        yield from self._schema()

    def _one(self, sql: str, *values: str) -> str:
        ((found, *_),) = self._connection.run(sql, *values, until_s=monotonic() + TIMEOUT_S)
        return found or ""

    def _server(self) -> Diagnosis:
        version = self._one("SELECT current_setting('server_version')")
        if self._connection.version < OLDEST:
            return Diagnosis("server", f"PostgreSQL {version}", "bad", "use 14 or newer")
        if self._connection.encoding != "UTF8":
            found = f"PostgreSQL {version}, encoding {self._connection.encoding}"
            return Diagnosis("server", found, "bad", "use a database with the encoding UTF8")
        return Diagnosis("server", f"PostgreSQL {version}")

    def _durability(self) -> Diagnosis:
        if self._one("SELECT current_setting('fsync')") != "on":
            advice = "a crash of the machine may lose grants or the database; set fsync=on"
            return Diagnosis("durability", "fsync is off", "bad", advice)
        commit = self._one("SELECT current_setting('synchronous_commit')")
        if commit == "off":
            advice = "grants wait for the disk all the same"
            return Diagnosis("durability", "synchronous_commit is off", "note", advice)
        return Diagnosis("durability", f"synchronous_commit is {commit}")

    def _replication(self) -> Diagnosis:
        if self._one("SELECT pg_is_in_recovery()") == "t":
            return Diagnosis("role", "standby", "bad", "connect to the primary")
        standbys = int(self._one("SELECT count(*) FROM pg_stat_replication"))
        names = self._one("SELECT current_setting('synchronous_standby_names')")
        if names:
            return Diagnosis("replication", f"synchronous to {names}")
        if not standbys:
            return Diagnosis("replication", "no standby is connected")
        advice = "a failover may forget the last grants; tokens keep rising, so guard what matters"
        return Diagnosis("replication", f"{standbys} standbys, none synchronous", "note", advice)

    def _pooler(self) -> Diagnosis:
        if not self._connection.is_pooled:
            return Diagnosis("pooler", "none")
        if self._address.listen == "same":
            advice = "write ?listen=host:port of the server, or waiters learn late of their grants"
            return Diagnosis("pooler", "between this client and the server", "note", advice)
        return Diagnosis(
            "pooler", f"between this client and the server; listen={self._address.listen}"
        )

    def _clock(self) -> Diagnosis:
        before_s = time.time()
        server_s = float(self._one("SELECT extract(epoch FROM clock_timestamp())"))
        off_ms = max(before_s - server_s, server_s - time.time(), 0) * 1000
        found = f"{off_ms:.0f} ms apart from ours"
        if off_ms > CLOCK_MS_MAX:
            advice = "tokens after a failover rest on clocks; let NTP set them"
            return Diagnosis("clock", found, "note", advice)
        return Diagnosis("clock", found)

    def _schema(self) -> Iterator[Diagnosis]:
        name = self._address.schema
        try:
            version = version_of(self._connection, monotonic() + TIMEOUT_S)
        except StoreError as error:
            advice = "grant the rights listed in docs/stores/postgresql.md"
            yield Diagnosis("schema", f"{name}: {error.what}", "bad", advice)
            return
        if version == 0:
            may = self._one("SELECT has_database_privilege(current_database(), 'CREATE')") == "t"
            advice = f"have the owner run the output of `{command(name)}`"
            yield Diagnosis(
                "schema",
                f"{name} does not exist yet",
                "good" if may else "bad",
                "" if may else advice,
            )
            return
        if version != VERSION:
            advice = f"run the output of `{command(name, version)}`, or let a client migrate it"
            yield Diagnosis(
                "schema",
                f"{name} has version {version}, not {VERSION}",
                "bad",
                "upgrade Lockfast" if version > VERSION else advice,
            )
            return
        yield Diagnosis("schema", f"{name}, version {version}")
        yield self._rights()
        yield from self._bloat()

    def _rights(self) -> Diagnosis:
        missing = self._one(
            in_schema(
                "SELECT string_agg(c.relname, ', ') FROM pg_class c"
                " WHERE c.relnamespace = $1::regnamespace AND CASE c.relkind"
                " WHEN 'r' THEN NOT has_table_privilege(c.oid, 'SELECT')"
                "  OR NOT has_table_privilege(c.oid, 'INSERT')"
                "  OR NOT has_table_privilege(c.oid, 'UPDATE')"
                "  OR NOT has_table_privilege(c.oid, 'DELETE')"
                " WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE')"
                "  OR NOT has_sequence_privilege(c.oid, 'UPDATE') ELSE false END",
                self._address.schema,
            ),
            f'"{self._address.schema}"',
        )
        if missing:
            advice = "grant the rights listed in docs/stores/postgresql.md"
            return Diagnosis("rights", f"not on {missing}", "bad", advice)
        return Diagnosis("rights", "this role may do all that is needed")

    def _bloat(self) -> Iterator[Diagnosis]:
        ((dead, size, autovacuum, settings),) = self._connection.run(
            "SELECT coalesce(sum(n_dead_tup), 0), coalesce(sum(pg_total_relation_size(relid)), 0),"
            " current_setting('autovacuum'),"
            " (SELECT string_agg(relname, ', ') FROM pg_class"
            "  WHERE relnamespace = $2::regnamespace"
            "  AND 'autovacuum_enabled=false' = ANY (reloptions))"
            " FROM pg_stat_user_tables WHERE schemaname = $1",
            self._address.schema, f'"{self._address.schema}"',
            until_s=monotonic() + TIMEOUT_S,
        )  # fmt: skip
        found = f"{int(size or 0) / 1e6:.1f} MB, {dead} dead rows"
        if autovacuum != "on" or settings:
            advice = "the tables grow with every lock taken; switch autovacuum on"
            where = f"; autovacuum is off{' for ' + settings if settings else ''}"
            yield Diagnosis("tables", found + where, "note", advice)
        elif int(dead or 0) > DEAD_ROWS_MAX or int(size or 0) > SIZE_MAX:
            advice = "look for old transactions that keep autovacuum from removing rows"
            yield Diagnosis("tables", found, "note", advice)
        else:
            yield Diagnosis("tables", found)
        yield self._updates()

    def _updates(self) -> Diagnosis:
        """Check the share of HOT updates, which touch no index and leave little bloat."""
        ((updates, hot, pages),) = self._connection.run(
            "SELECT s.n_tup_upd, s.n_tup_hot_upd,"
            " (SELECT option_value FROM pg_options_to_table(c.reloptions)"
            "  WHERE option_name = 'fillfactor')"
            " FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid"
            " WHERE s.schemaname = $1 AND s.relname = 'claims'",
            self._address.schema, until_s=monotonic() + TIMEOUT_S,
        )  # fmt: skip
        share = int(hot or 0) / max(1, int(updates or 0))
        found = f"{updates} of claims, {share:.0%} of them HOT; fillfactor {pages or 100}"
        if pages is not None and int(pages) < FILLFACTOR_MIN:
            table = f'"{self._address.schema}".claims'
            advice = f"pages are not reused: ALTER TABLE {table} RESET (fillfactor)"
            return Diagnosis("updates", found, "note", advice)
        if int(updates or 0) > 1000 and share < HOT_SHARE_MIN:
            advice = "the tables grow faster; an index on a changing column may have been added"
            return Diagnosis("updates", found, "note", advice)
        return Diagnosis("updates", found)
