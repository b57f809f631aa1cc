"""Compute the slot of a key, and hash tags that spread shards evenly over the slots."""

from __future__ import annotations

import itertools
from binascii import crc_hqx
from functools import cache
from typing import Final

SLOTS: Final = 16384


def slot_of(tag: str) -> int:
    """Return the slot of all keys with this hash tag."""
    return crc_hqx(tag.encode(), 0) % SLOTS


def tag_of(namespace: str) -> str:
    """Return the hash tag of the keys of a namespace, as in `keys_of`."""
    return f"lockfast:{namespace}"


@cache
def shard_namespaces(namespace: str, shards: int) -> tuple[str, ...]:
    """Return the namespace of each shard; with one shard it is the namespace itself.

    A cluster assigns each node a range of slots, so shard i of n is placed near the middle of the
    i-th n-th of the slots: equal ranges have equal numbers of shards, give or take one. User
    namespaces never contain a colon.
    """
    if shards == 1:
        return (namespace,)
    return tuple(_namespace_in(namespace, shard, shards) for shard in range(shards))


def _namespace_in(namespace: str, shard: int, shards: int) -> str:
    middle, near = (2 * shard + 1) * SLOTS // (2 * shards), SLOTS // shards // 8
    for attempt in itertools.count():
        found = f"{namespace}:{shard}.{attempt}"
        if abs(slot_of(tag_of(found)) - middle) <= near:
            return found
    raise AssertionError("unreachable")
