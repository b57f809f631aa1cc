"""Leases with a fixed end: `renew=False`.

Their session is renewed like any other, so that the holder learns of a revocation. The client
ends the lease at its bound and releases it; if the client dies, the session's TTL ends it.
"""

from __future__ import annotations

from lockfast.core.commands import Ended, Gone, Look
from lockfast.errors import UnsupportedError
from lockfast.flow.acquire import check, lost_error
from lockfast.flow.client import Core
from lockfast.flow.holding import Holding


async def extend(core: Core, holding: Holding, by_ms: int) -> None:
    """Move the end of a fixed lease, if the store confirms that it is still held."""
    if not holding.ask.fixed_ms:
        raise UnsupportedError(
            f"extending the lease on {holding.ask.name!r}",
            "it is renewed in the background, for as long as its holder lives",
            "use renew=False for a lease with a fixed end",
        )
    check(holding)
    session = holding.session
    assert session is not None
    reply = await core.request(Look(session.id, holding.n))
    if isinstance(reply, Ended):
        session.ended_by_store(reply)
    elif isinstance(reply, Gone):
        session.lost(holding, reply.reason, reply.by)
    if not session.extend(holding, by_ms):
        raise lost_error(holding)
