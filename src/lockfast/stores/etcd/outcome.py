"""When a command is carried out, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockfast.core.commands import Reply, Wake
from lockfast.stores.etcd.rows import RELATIVE, given


class Instant(NamedTuple):
    """What the clocks say, and whether sessions end by them or by their leases."""

    now_ms: int
    wall_us: int
    by_lease: bool = True

    @staticmethod
    def now() -> Instant:
        wall_us = time.time_ns() // 1000
        return Instant(wall_us // 1000, wall_us)


class Outcome(NamedTuple):
    """What became of a command."""

    reply: Reply
    wakes: Sequence[Wake] = ()


def resolved(value: Any, epoch: int, revision: int) -> Any:
    """Answers and wakes with the tokens that a transaction has given."""
    if isinstance(value, int):
        return given(value, epoch, revision) if value >= RELATIVE else value
    if isinstance(value, list):
        return [resolved(item, epoch, revision) for item in value]
    if isinstance(value, tuple):
        items = [resolved(item, epoch, revision) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
