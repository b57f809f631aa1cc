"""Whose keep-alives have stopped, by our own clock.

A store ends a silent session by its own clock. Where that can be set back, nobody would
ever be ended; so whoever waits also counts by its own clock how long the renewal counters
of those ahead stand still.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from lockfast.core.commands import Blocker

SLACK: Final = 1.1
"""A session is taken for dead after its TTL and a tenth: clocks differ in rate by far less."""


class Silent(NamedTuple):
    """A session that has not been renewed for as long as we have watched it."""

    session: str
    renewals: int
    for_ms: int


class SilentSessions:
    """What the counters of the sessions ahead were, and since when."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def saw(self, blockers: Iterable[Blocker], now_ms: int) -> None:
        """`now_ms` is from after the answer came, so no renewal before it is missed."""
        since: dict[str, tuple[int, int]] = {}
        for blocker in blockers:
            known = self._since.get(blocker.session)
            if known is None or known[0] != blocker.renewals:
                known = (blocker.renewals, now_ms)
            since[blocker.session] = known
        self._since = since

    def silent(self, now_ms: int, span_ms: int) -> list[Silent]:
        """Those whose counter has stood still for at least so long."""
        return [
            Silent(session, renewals, now_ms - since_ms)
            for session, (renewals, since_ms) in self._since.items()
            if now_ms - since_ms >= span_ms
        ]

    def forget(self) -> None:
        """What happened while we did not look, or looked elsewhere, is not known."""
        self._since = {}


def just_before(session: str) -> str:
    """A name directly before a session's, for reading that session alone."""
    return f"{session[:-1]}{chr(ord(session[-1]) - 1)}\U0010ffff"
