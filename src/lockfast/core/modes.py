"""The mode table: which modes may be held on a resource at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"
UPDATE: Final = "update"
INTENT_SHARED: Final = "intent_shared"
INTENT_EXCLUSIVE: Final = "intent_exclusive"
PERMIT: Final = "permit"

LOCK: Final = "lock"
TREE: Final = "tree"
SEMAPHORE: Final = "semaphore"
ELECTION: Final = "election"
PARTY: Final = "party"
ONCE: Final = "once"

MODES_OF_KIND: Final[Mapping[str, frozenset[str]]] = {
    LOCK: frozenset({EXCLUSIVE, SHARED, UPDATE}),
    TREE: frozenset({EXCLUSIVE, SHARED, INTENT_SHARED, INTENT_EXCLUSIVE}),
    SEMAPHORE: frozenset({PERMIT}),
    ELECTION: frozenset({EXCLUSIVE}),
    PARTY: frozenset({SHARED}),
    ONCE: frozenset({EXCLUSIVE}),
}

CONFLICTS: Final[Mapping[str, frozenset[str]]] = {
    EXCLUSIVE: frozenset({EXCLUSIVE, SHARED, UPDATE, INTENT_SHARED, INTENT_EXCLUSIVE, PERMIT}),
    SHARED: frozenset({EXCLUSIVE, INTENT_EXCLUSIVE, PERMIT}),
    UPDATE: frozenset({EXCLUSIVE, UPDATE, INTENT_EXCLUSIVE, PERMIT}),
    INTENT_SHARED: frozenset({EXCLUSIVE, PERMIT}),
    INTENT_EXCLUSIVE: frozenset({EXCLUSIVE, SHARED, UPDATE, PERMIT}),
    # Permits exclude each other by their weights, not by their mode.
    PERMIT: frozenset({EXCLUSIVE, SHARED, UPDATE, INTENT_SHARED, INTENT_EXCLUSIVE}),
}
"""For each mode, those that exclude it. The relation is symmetric."""

UPGRADES: Final = frozenset({(SHARED, UPDATE), (SHARED, EXCLUSIVE), (UPDATE, EXCLUSIVE)})
DOWNGRADES: Final = frozenset({(EXCLUSIVE, UPDATE), (EXCLUSIVE, SHARED), (UPDATE, SHARED)})

_STRENGTH: Final = (INTENT_SHARED, SHARED, UPDATE, INTENT_EXCLUSIVE, EXCLUSIVE)


def join(one: str, other: str) -> str:
    """Return the weakest mode that includes both, for two places on one resource."""
    if one == other:
        return one
    weaker, stronger = sorted((one, other), key=_STRENGTH.index)
    if stronger == INTENT_EXCLUSIVE and weaker != INTENT_SHARED:
        return EXCLUSIVE  # shared here and exclusive below is only covered by exclusive
    return stronger
