"""Guards stand on the resource's side and refuse tokens that have been succeeded.

They know nothing of clients, sessions or stores: a token and a name are all they need.
Importing them loads no database library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.guards.admission import Guard, InvalidTokenError
from lockfast.guards.memory import MemoryGuard
from lockfast.guards.sqlite import SqliteGuard

if TYPE_CHECKING:
    from lockfast.guards.etcd import EtcdGuard
    from lockfast.guards.files import FileGuard
    from lockfast.guards.postgresql import AsyncPostgresGuard, PostgresGuard
    from lockfast.guards.redis import AsyncRedisGuard, RedisGuard

__all__ = [
    "AsyncPostgresGuard",
    "AsyncRedisGuard",
    "EtcdGuard",
    "FileGuard",
    "Guard",
    "InvalidTokenError",
    "MemoryGuard",
    "PostgresGuard",
    "RedisGuard",
    "SqliteGuard",
]


def __getattr__(name: str) -> Any:
    # Only for those who use them: they read and hash scripts, or load HTTP and TLS.
    if name in ("AsyncRedisGuard", "RedisGuard"):
        from lockfast.guards import redis

        return getattr(redis, name)
    if name in ("AsyncPostgresGuard", "PostgresGuard"):
        from lockfast.guards import postgresql

        return getattr(postgresql, name)
    if name == "EtcdGuard":
        from lockfast.guards.etcd import EtcdGuard

        return EtcdGuard
    if name == "FileGuard":
        from lockfast.guards.files import FileGuard

        return FileGuard
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
