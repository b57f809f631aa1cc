"""Guards stand on the resource's side and refuse tokens that have been succeeded.

They know nothing of clients, sessions or stores: a token and a name are all they need.
Importing them loads no database library.
"""

from __future__ import annotations

from lockfast.guards.admission import Guard, InvalidTokenError
from lockfast.guards.memory import MemoryGuard
from lockfast.guards.sqlite import SqliteGuard

__all__ = ["Guard", "InvalidTokenError", "MemoryGuard", "SqliteGuard"]
