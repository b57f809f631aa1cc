"""How the commands that end a session end it, for stores whose claims vanish with the session."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.core.commands import Close, Expel, RevokeSession
from lockfast.core.reasons import CLOSED, revoked


class Ending(NamedTuple):
    """A session to end."""

    session: str
    reason: str
    what: str
    """The event that is logged for its claims."""
    by: str = ""
    renewals: int | None = None
    """End the session only if its renewal count is this."""


def ending_of(command: Close | Expel | RevokeSession) -> Ending:
    if isinstance(command, Close):
        return Ending(command.session, CLOSED, "released")
    if isinstance(command, Expel):
        return Ending(command.session, command.reason, "expired", "", command.renewals)
    return Ending(command.session, revoked(command.reason), "revoked", command.by)
