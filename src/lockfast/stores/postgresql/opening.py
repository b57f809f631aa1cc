"""postgresql://, postgres://: [user:password@]host[:port][,host…]/database.

Options: namespace=, schema=lockfast, listen=host:port|off, connections=16, and those of libpq
that name a server or how to trust it (host, sslmode, sslrootcert, target_session_attrs …).
"""

from __future__ import annotations

from lockfast.errors import UnsupportedError
from lockfast.ports import Store
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.registry import Face, StoreUrl


def open_store(url: StoreUrl, face: Face, *, death_watch: bool = True) -> Store:
    _require_psycopg(url)
    from lockfast.stores.postgresql.address import parse

    address = parse(url)
    if face == "asyncio":
        from lockfast.stores.postgresql.aio import AsyncPostgresStore

        return AsyncPostgresStore(address)
    from lockfast.stores.postgresql.store import PostgresStore

    return PostgresStore(address)


def _require_psycopg(url: StoreUrl) -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            url.label, "the package psycopg is not installed", "pip install 'lockfast[postgres]'"
        ) from None


def open_maintenance(url: StoreUrl) -> Maintenance:
    _require_psycopg(url)
    from lockfast.stores.postgresql.address import parse
    from lockfast.stores.postgresql.maintenance import PostgresMaintenance

    return PostgresMaintenance(parse(url))
