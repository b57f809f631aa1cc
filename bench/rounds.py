"""The interleaving: whoever is measured last in one round is measured earlier in the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["in_turn"]

Item = TypeVar("Item")


def in_turn(items: Sequence[Item], rounds: int) -> Iterator[Item]:
    """Every item once per round, each round beginning with the next one."""
    for first in range(rounds):
        for offset in range(len(items)):
            yield items[(first + offset) % len(items)]
