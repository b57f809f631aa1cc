"""Detect sessions whose keep-alives have stopped, by the local clock.

A store expires a silent session by its own clock. If that clock is set back, the session
would not expire in time. So each waiting client also measures, on its local clock, how long
the renewal counters of the sessions ahead of it have not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
        self._ahead: dict[int, set[str]] = {}
        """By claim of ours, the sessions that were ahead of it when it was last looked at."""

    def saw(
        self, ahead: Mapping[int, Iterable[Blocker]], waiting: Collection[int], now_ms: int
    ) -> None:
        """Record the counters of the sessions ahead of some of our claims.

        Not every keep-alive looks at every waiting claim, so what was seen ahead of the others
        stays: a counter that is the same in two observations has not changed in between. Read
        `now_ms` after the reply, so that silence is not overstated.
        """
        for blockers in ahead.values():
            for blocker in blockers:
                known = self._since.get(blocker.session)
                if known is None or known[0] != blocker.renewals:
                    self._since[blocker.session] = (blocker.renewals, now_ms)
        seen = {n: {blocker.session for blocker in blockers} for n, blockers in ahead.items()}
        self._ahead = {n: s for n, s in {**self._ahead, **seen}.items() if n in waiting}
        sessions = set().union(*self._ahead.values())
        self._since = {id_: since for id_, since in self._since.items() if id_ in sessions}

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
        self._ahead = {}


def just_before(session: str) -> str:
    """Return a key that sorts directly before a session id, to read that session alone."""
    return f"{session[:-1]}{chr(ord(session[-1]) - 1)}\U0010ffff"
