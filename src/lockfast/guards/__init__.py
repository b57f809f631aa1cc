"""Guards run at the resource and refuse stale tokens.

They know nothing of clients, sessions or stores: a token and a name are all they need. Importing
them loads no database library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockfast.guards.admission import FenceDamagedError, Guard, InvalidTokenError
from lockfast.guards.memory import MemoryGuard
from lockfast.guards.sqlite import SqliteGuard

if TYPE_CHECKING:
    from lockfast.guards.etcd import EtcdGuard
    from lockfast.guards.files import FileGuard
    from lockfast.guards.objects import AsyncObjectGuard, ObjectGuard
    from lockfast.guards.postgresql import AsyncPostgresGuard, PostgresGuard
    from lockfast.guards.redis import AsyncRedisGuard, RedisGuard
    from lockfast.guards.zookeeper import ZooKeeperGuard

__all__ = [
    "AsyncObjectGuard",
    "AsyncPostgresGuard",
    "AsyncRedisGuard",
    "EtcdGuard",
    "FenceDamagedError",
    "FileGuard",
    "Guard",
    "InvalidTokenError",
    "MemoryGuard",
    "ObjectGuard",
    "PostgresGuard",
    "RedisGuard",
    "SqliteGuard",
    "ZooKeeperGuard",
]

_MODULES = {
    "AsyncObjectGuard": "objects",
    "AsyncPostgresGuard": "postgresql",
    "AsyncRedisGuard": "redis",
    "EtcdGuard": "etcd",
    "FileGuard": "files",
    "ObjectGuard": "objects",
    "PostgresGuard": "postgresql",
    "RedisGuard": "redis",
    "ZooKeeperGuard": "zookeeper",
}
"""Imported on first use: these read and hash scripts, or load HTTP and TLS."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
