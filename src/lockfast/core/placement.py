"""Placement: on which shard of a sharded store a name and a session live.

A shard is a whole lock table with its own tokens, log and clock. A name lives in the shard that
its hash selects; a session lives in one shard, which its id names. So every client can tell
from a command alone where it belongs, and the failure of a shard costs only the sessions there.

What must be granted in one step must be in one shard. A tree is: all its names have the same
first segment, and trees are always placed by it. With `shard_by=first-segment` so are
all other names, and `orders/1` and `orders/2` can be locked at once.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lockfast.core.commands import Place
from lockfast.core.modes import TREE
from lockfast.errors import UnsupportedError

BY_NAME: Final = "name"
BY_FIRST_SEGMENT: Final = "first-segment"
SHARD_BY: Final = (BY_NAME, BY_FIRST_SEGMENT)
SHARDS_MAX: Final = 64
CLIENT_DIGITS: Final = 8
"""The ids of all sessions of a client begin with the same digits, so that others find them."""

_MARK: Final = "-"


def session_id(client: str, unique: str) -> str:
    """Return the id of a client's session."""
    return f"{client[:CLIENT_DIGITS]}{unique[CLIENT_DIGITS:]}"


class Placement(NamedTuple):
    """How names are spread over shards. All clients of a namespace must agree on it."""

    shards: int
    by: str = BY_NAME

    def shard_of_name(self, kind: str, name: str) -> int:
        """Return the shard of a resource."""
        if kind == TREE or self.by == BY_FIRST_SEGMENT:
            name = name.partition("/")[0]
        return crc32(name.encode()) % self.shards

    def shard_of(self, places: Iterable[Place]) -> int:
        """Return the shard of the places of a claim. Raises UnsupportedError if they differ."""
        found = {self.shard_of_name(place.kind, place.name): place.name for place in places}
        if len(found) == 1:
            return next(iter(found))
        one, other = list(found.values())[:2]
        advice = (
            "use names with the same first segment"
            if self.by == BY_FIRST_SEGMENT
            else f"use shard_by={BY_FIRST_SEGMENT} and names with the same first segment"
        )
        raise UnsupportedError(
            "several locks at once",
            f"{one!r} and {other!r} are on different shards, which grant independently",
            advice,
        )

    def shards_of_prefix(self, prefix: str) -> Sequence[int]:
        """Return the shards that may have resources whose names begin with `prefix`."""
        if self.by == BY_FIRST_SEGMENT and "/" in prefix:
            return (self.shard_of_name("", prefix),)
        return range(self.shards)

    def session_id(self, client: str, unique: str, shard: int) -> str:
        """Return the id of a client's session in a shard."""
        return f"{session_id(client, unique)}{_MARK}{shard:02}"

    def shard_of_session(self, session: str) -> int:
        """Return the shard of a session. An id of no shard belongs to the first, which does
        not know it."""
        if self.shards == 1:
            return 0
        shard = session.rpartition(_MARK)[2]
        valid = len(shard) == 2 and shard.isascii() and shard.isdecimal()
        return int(shard) if valid and int(shard) < self.shards else 0
