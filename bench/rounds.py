"""Interleaving: each round starts with another contestant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["in_turn"]

Item = TypeVar("Item")


def in_turn(items: Sequence[Item], rounds: int) -> Iterator[Item]:
    """Yield every item once per round; each round starts with the next item."""
    for first in range(rounds):
        for offset in range(len(items)):
            yield items[(first + offset) % len(items)]
