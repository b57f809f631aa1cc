"""`?wait=N`: a grant counts when N replicas have it.

After a reply that contains a grant, WAIT follows on the same connection: it returns how many
replicas have received everything that the server had executed by then. Until enough have, a grant
is not handed out: an enter raises OutcomeUnknownError, and its caller retries or leaves; a claim
that was granted while it waited still appears to wait. A grant that arrives as a wake is looked at
first.

This reduces the number of failovers that lose a grant, but not to zero: a replica without the grant
may still be promoted.
"""

from __future__ import annotations

from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, WAITING, Command, Reply
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.redis.resp import pack

WAIT_MS: Final = 1000
"""How long replicas have to confirm; replication takes one round trip."""
LOOK_AGAIN_MS: Final = 500


class Confirmation:
    """The confirmed grants of one client. Shared by all its wires."""

    def __init__(self, label: str, replicas: int) -> None:
        self._label = label
        self._replicas = replicas
        self._confirmed: dict[tuple[str, int], int] = {}
        """The token of each claim whose grant is known to be replicated."""

    def needed(self, command: Command, reply: Reply) -> bool:
        """Return whether a reply contains a grant that has not been confirmed yet."""
        if isinstance(command, c.Leave):
            self._confirmed.pop((command.session, command.n), None)
        elif isinstance(command, c.Close):
            for claim in [claim for claim in self._confirmed if claim[0] == command.session]:
                self._confirmed.pop(claim, None)
        return any(self._confirmed.get(claim) != token for claim, token in _grants(command, reply))

    def packed(self, left_s: float) -> bytes:
        """Return the command that requests the confirmation."""
        return pack("WAIT", self._replicas, max(1, min(WAIT_MS, round(left_s * 900))))

    def judged(self, command: Command, reply: Reply, found: Any) -> Reply:
        """Return the confirmed part of a reply. Raises OutcomeUnknownError if that is none."""
        if isinstance(found, int) and found >= self._replicas:
            self._confirmed.update(_grants(command, reply))
            return reply
        if isinstance(command, c.Look):
            return c.Queued((), LOOK_AGAIN_MS)
        if isinstance(reply, c.Renewed):
            looks = tuple(
                (n, c.Queued((), LOOK_AGAIN_MS) if isinstance(look, c.Granted) else look)
                for n, look in reply.looks
            )
            return reply._replace(looks=looks)
        if isinstance(reply, c.ClaimsReply):
            return c.ClaimsReply(tuple(map(self._as_known, reply.claims)))
        had = found if isinstance(found, int) else 0
        raise OutcomeUnknownError(
            self._label,
            f"granted the lock, but {had} of {self._replicas} replicas confirmed it"
            + (f" ({found})" if isinstance(found, Exception) else ""),
            "check the replicas, or lower ?wait=",
        )

    def _as_known(self, view: c.ClaimView) -> c.ClaimView:
        known = self._confirmed.get((view.session, view.n)) == view.token
        return view if known or view.state != HOLDING else view._replace(state=WAITING, token=0)


def _grants(command: Command, reply: Reply) -> list[tuple[tuple[str, int], int]]:
    """Return the claims that a reply reports as held, with their tokens."""
    session: str = getattr(command, "session", "")
    if isinstance(reply, c.Granted):
        return [((session, getattr(command, "n", 0)), reply.token)]
    if isinstance(reply, c.Renewed):
        return [((session, n), it.token) for n, it in reply.looks if isinstance(it, c.Granted)]
    if isinstance(reply, c.ClaimsReply):
        return [((v.session, v.n), v.token) for v in reply.claims if v.state == HOLDING]
    return []
