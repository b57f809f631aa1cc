"""Send a request to the first member of a cluster that can be reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final, Protocol

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.http.members import Member, Members
from lockfast.stores.http.messages import Request, Response

ATTEMPTS: Final = 3
"""With several members, a request gives each at most a third of its time, since a stopped member
does not answer. With one member there is no alternative."""
ATTEMPT_S_MIN: Final = 0.1
ATTEMPT_S_MAX: Final = 1.5


class HttpPool(Protocol):
    """The interface that the blocking and the asyncio pool share."""

    connections: int

    async def exchange(self, member: Member, request: Request, until_s: float) -> Response: ...

    async def follow(
        self,
        member: Member,
        request: Request,
        until_s: float,
        take: Callable[[Sequence[dict[str, Any]]], bool],
    ) -> None: ...

    async def pause(self, span_s: float) -> None: ...

    def close(self) -> None: ...


async def ask(members: Members, pool: HttpPool, request: Request, timeout_ms: int) -> Response:
    """Send a request to the current member; if it cannot be reached, to the next.

    Raises StoreUnavailableError if the request was certainly not sent to any member, and
    OutcomeUnknownError if a member received it and did not answer.
    """
    attempt_s = timeout_ms / 1000
    until_s = monotonic() + attempt_s
    if len(members.all) > 1:
        attempt_s = min(max(attempt_s / ATTEMPTS, ATTEMPT_S_MIN), ATTEMPT_S_MAX)
    for _ in members.all:
        member = members.current
        try:
            return await pool.exchange(member, request, min(until_s, monotonic() + attempt_s))
        except StoreUnavailableError as error:
            members.suspect(member)
            failure = error
        except OutcomeUnknownError:
            members.suspect(member)
            raise
    raise failure
