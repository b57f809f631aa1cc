"""Words of messages that are the same everywhere."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 session", "2 sessions"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
