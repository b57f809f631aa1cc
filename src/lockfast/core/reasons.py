"""The texts that say why a claim or session ended or was refused, in replies, views and events.

Each stands here once. The reasons of a session read after "session s-1 ended: ", those of a
claim after "lease on 'orders' was lost: ".
"""

from __future__ import annotations

from typing import Final

EXPIRED: Final = "expired"
"""The session was not renewed within its TTL."""
CLOSED: Final = "closed by its client"
UNKNOWN_SESSION: Final = "the store has no record of it"

NO_RECORD: Final = "the store has no record of it"
NOT_HELD: Final = "the claim is not held"
NOT_QUEUED: Final = "the claim is not in the queue"
MAX_HOLD_ELAPSED: Final = "its max_hold elapsed"
REVOKED: Final = "revoked: "
"""Followed by the operator's reason; for a claim or a session."""

LOST_EXPIRED: Final = "expired"
"""Why a lease was lost, in one word: no keep-alive succeeded before its deadline."""
LOST_ENDED: Final = "ended"
"""The store ended the session, or has lost it, before it expired."""
LOST_REVOKED: Final = "revoked"
LOST_MAX_HOLD: Final = "max_hold"
LOST_MISSING: Final = "missing"
"""The store has no record of the claim, or granted it anew."""
LOST_KEEPER: Final = "keeper"
"""The session's background job failed."""
LOST_CLOSED: Final = "closed"
"""Its client was closed, which releases everything: not a loss to an observer."""

ALREADY_RELEASED: Final = "the claim was already released"
LATER_CONVERSION: Final = "a later conversion was requested"
NOT_CONVERTIBLE: Final = "only a lock on one resource can be converted"
TOO_MANY_PERMITS: Final = "a limit of {limit} cannot grant {weight} permits"
NO_LIMIT: Final = "only a semaphore has a limit, and it must be at least 1"


def revoked(reason: str) -> str:
    """Return the reason of a claim or session that an operator revoked."""
    return REVOKED + reason


def too_many_permits(weight: int, limit: int) -> str:
    """Return why a semaphore can never grant a claim."""
    return TOO_MANY_PERMITS.format(weight=weight, limit=limit)
