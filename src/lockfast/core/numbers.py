"""The claim numbers that a session has used; a used number is never accepted again.

A client assigns increasing numbers, but commands may arrive in any order, so a skipped number
may still be in flight. A session therefore stores the highest number seen and the unseen
ranges below it, as text: "3-5,9-9,".
"""

from __future__ import annotations

from typing import Protocol


class Numbers(Protocol):
    """A session, or whatever else keeps its claim numbers."""

    highest: int
    unseen: str


def _ranges(session: Numbers) -> list[tuple[int, int]]:
    pairs = (text.split("-") for text in session.unseen.split(",") if text)
    return [(int(low), int(high)) for low, high in pairs]


def _set_ranges(session: Numbers, ranges: list[tuple[int, int]]) -> None:
    session.unseen = "".join(f"{low}-{high}," for low, high in ranges)


def is_seen(session: Numbers, n: int) -> bool:
    """Return True if an `Enter` or `Leave` with this claim number was executed before."""
    return n <= session.highest and not any(low <= n <= high for low, high in _ranges(session))


def see(session: Numbers, n: int) -> None:
    """Record a claim number. Skipped numbers stay unseen: they may still be in flight."""
    if n == session.highest + 1:
        session.highest = n
    elif n > session.highest:
        _set_ranges(session, [*_ranges(session), (session.highest + 1, n - 1)])
        session.highest = n
    elif session.unseen:
        left = []
        for low, high in _ranges(session):
            if low <= n <= high:
                left += [(a, b) for a, b in ((low, n - 1), (n + 1, high)) if a <= b]
            else:
                left.append((low, high))
        _set_ranges(session, left)


def forget_below(session: Numbers, lowest: int) -> None:
    """Treat every number below `lowest` as seen: the client will not use them again."""
    session.highest = max(session.highest, lowest - 1)
    if session.unseen:
        kept = [(max(low, lowest), high) for low, high in _ranges(session) if high >= lowest]
        _set_ranges(session, kept)
