"""`?wait=N`: a grant counts when N replicas have it.

After a reply that tells of a grant, WAIT follows on the same connection: it returns how many
replicas have received everything that the server had done by then. Until enough have, a grant
is not handed out: whoever entered gets OutcomeUnknownError and retries or leaves, and a claim
that was granted while it waited looks as if it waited still. A grant that is heard by a wake is
looked at first.

This shortens the list of failovers that forget a grant; it does not end it: a replica without
the grant may be promoted all the same.
"""

from __future__ import annotations

from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.commands import HOLDING, WAITING, Command, Reply
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.redis.resp import pack

WAIT_MS: Final = 1000
"""How long replicas have to confirm; a copy takes a round trip."""
LOOK_AGAIN_MS: Final = 500


class Confirmation:
    """Which grants of one client were confirmed. Shared by all its wires."""

    def __init__(self, label: str, replicas: int) -> None:
        self._label = label
        self._replicas = replicas
        self._confirmed: dict[tuple[str, int], int] = {}
        """The token of each claim whose grant is known to be replicated."""

    def needed(self, command: Command, reply: Reply) -> bool:
        """Whether a reply tells of a grant that was not confirmed yet."""
        if isinstance(command, c.Leave):
            self._confirmed.pop((command.session, command.n), None)
        elif isinstance(command, c.Close):
            for claim in [claim for claim in self._confirmed if claim[0] == command.session]:
                self._confirmed.pop(claim, None)
        return any(self._confirmed.get(claim) != token for claim, token in _grants(command, reply))

    def packed(self, left_s: float) -> bytes:
        """What asks for the confirmation."""
        return pack("WAIT", self._replicas, max(1, min(WAIT_MS, round(left_s * 900))))

    def judged(self, command: Command, reply: Reply, found: Any) -> Reply:
        """The reply as far as it is confirmed; raises OutcomeUnknownError if it was a grant."""
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
    """The claims that a reply calls held, with their tokens."""
    session: str = getattr(command, "session", "")
    if isinstance(reply, c.Granted):
        return [((session, getattr(command, "n", 0)), reply.token)]
    if isinstance(reply, c.Renewed):
        return [((session, n), it.token) for n, it in reply.looks if isinstance(it, c.Granted)]
    if isinstance(reply, c.ClaimsReply):
        return [((v.session, v.n), v.token) for v in reply.claims if v.state == HOLDING]
    return []
