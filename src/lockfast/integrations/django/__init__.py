"""Locks in Django: `INSTALLED_APPS += ["lockfast.integrations.django"]` and `LOCKFAST = {…}`.

The setting has the arguments of `lockfast.connect` in capitals, for example
`{"URL": "redis://locks", "TTL": 30}`. Without it, `LOCKFAST_URL` and `LOCKFAST_TTL` apply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.conf import settings  # type: ignore[import-untyped]
from django.db import connections, transaction  # type: ignore[import-untyped]

import lockfast
from lockfast.api.settings import Seconds
from lockfast.errors import UnsupportedError
from lockfast.guards import Guard, PostgresGuard, SqliteGuard
from lockfast.guards.admission import checked_result

T = TypeVar("T")

OPTIONS = ("URL", "TTL", "OWNER", "CONNECT_TIMEOUT")

_mutex = threading.Lock()
_client: lockfast.Client | None = None


def configuration() -> dict[str, Any]:
    """Return the setting LOCKFAST as keyword arguments of `lockfast.connect`."""
    options = getattr(settings, "LOCKFAST", {})
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"LOCKFAST has {unknown[0]!r}; it may have {', '.join(OPTIONS)}")
    return {name.lower(): value for name, value in options.items()}


def client() -> lockfast.Client:
    """Return the client of this project; it connects on first use, also after a fork."""
    global _client
    with _mutex:
        if _client is None:
            _client = lockfast.connect(**configuration())
        return _client


@contextmanager
def locked(
    name: str, *, timeout: Seconds | None = None, ttl: Seconds | None = None, using: str = "default"
) -> Iterator[lockfast.Lease]:
    """Hold a lock around a transaction.

    Raises UnsupportedError inside a transaction of the database `using`: the lock would be
    released before the commit, and the next holder would not see what was written.
    """
    if connections[using].in_atomic_block:
        raise UnsupportedError(
            f"taking {name!r} inside a transaction",
            "the lock would be released before the commit, so the next holder would not see the "
            "writes",
            "take the lock around transaction.atomic(); in a view under ATOMIC_REQUESTS use "
            "@transaction.non_atomic_requests",
        )
    with client().lock(name, ttl=ttl).acquire(timeout=timeout) as lease:
        yield lease


def guard(using: str = "default", *, tree: bool = False) -> Guard:
    """Return a guard inside the current transaction of a database: PostgreSQL or SQLite."""
    connection = connections[using]
    if not connection.in_atomic_block:
        raise UnsupportedError(
            "a guard outside a transaction",
            "the check would be over before your own statements begin",
            "use `with transaction.atomic():`",
        )
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        return PostgresGuard(connection, tree=tree)
    if connection.vendor == "sqlite":
        return SqliteGuard(connection.connection, tree=tree)
    raise UnsupportedError(
        f"a guard in a {connection.vendor} database", "only PostgreSQL and SQLite have one"
    )


class FencedDatabase:
    """A database as a storage for `lease.execute_with_fence`: PostgreSQL or SQLite.

    `lease.execute_with_fence(FencedDatabase(), pay)` calls `pay()` in a new transaction, after
    the guard has admitted the token there.
    """

    def __init__(self, using: str = "default", *, tree: bool = False) -> None:
        self.tree = tree
        self._using = using

    def execute(
        self,
        resource: str,
        token: int,
        operation: Callable[[], T],
        *,
        shared: bool = False,
        once: bool = False,
    ) -> T:
        """Admit the token, call `operation` and commit; roll back if anything raises.

        Raises RuntimeError inside `transaction.atomic()`, which would commit it later.
        """
        with transaction.atomic(using=self._using, durable=True):
            guard(self._using, tree=self.tree).admit(resource, token, shared=shared, once=once)
            return checked_result(operation())
