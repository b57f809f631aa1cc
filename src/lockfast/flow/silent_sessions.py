"""Detect sessions whose keep-alives have stopped, by the local clock.

A store expires a silent session by its own clock. If that clock is set back, the session
would not expire in time. So each waiting client also measures, on its local clock, how long
the renewal counters of the sessions ahead of it have not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from lockfast.core.commands import Blocker

SLACK: Final = 1.1
"""A session is presumed dead after 1.1 times its TTL; clock rates differ by far less."""


class Silent(NamedTuple):
    """A session whose renewal counter has not changed while we observed it."""

    session: str
    renewals: int
    for_ms: int


class SilentSessions:
    """The renewal counters of the sessions ahead, and when each was first observed."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}

    def saw(self, blockers: Iterable[Blocker], now_ms: int) -> None:
        """Record the counters. Read `now_ms` after the reply, so that silence is not overstated."""
        since: dict[str, tuple[int, int]] = {}
        for blocker in blockers:
            known = self._since.get(blocker.session)
            if known is None or known[0] != blocker.renewals:
                known = (blocker.renewals, now_ms)
            since[blocker.session] = known
        self._since = since

    def silent(self, now_ms: int, span_ms: int) -> list[Silent]:
        """Return the sessions whose counter has not changed for at least `span_ms`."""
        return [
            Silent(session, renewals, now_ms - since_ms)
            for session, (renewals, since_ms) in self._since.items()
            if now_ms - since_ms >= span_ms
        ]

    def clear(self) -> None:
        """Start over, after a gap in the observations or a change of server."""
        self._since = {}


def just_before(session: str) -> str:
    """Return a key that sorts directly before a session id, to read that session alone."""
    return f"{session[:-1]}{chr(ord(session[-1]) - 1)}\U0010ffff"
