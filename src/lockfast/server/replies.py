"""The HTTP response for each reply: its status, and a problem document for refusals."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from lockfast.core import commands as c
from lockfast.core.codec import encode, fields_of
from lockfast.server.problems import GONE, HELD, OVER, REFUSED, Problem

_REFUSALS: Final = {
    c.WHY_FINISHED: 409,
    c.WHY_DEADLOCK: 409,
    c.WHY_LIMIT_DIFFERS: 409,
    c.WHY_QUEUE_FULL: 429,
    c.WHY_CLAIMS_FULL: 429,
    c.WHY_TOO_LARGE: 413,
    c.WHY_INVALID: 422,
}


def response_to(reply: c.Reply) -> Response:
    """Return the response that carries a reply; a refusal becomes a problem document."""
    if isinstance(reply, c.Busy):
        holders = [one.owner for one in reply.ahead if one.held]
        detail = ", ".join(one.owner for one in reply.ahead) + " is ahead in the queue"
        if holders:
            detail = f"held by {', '.join(holders)}"
        elif not reply.ahead:
            detail = "held by another"
        wait_s = max(1, min(60, reply.retry_ms // 1000))
        return _problem(409, HELD, reply, detail, {"retry-after": str(wait_s)})
    if isinstance(reply, c.Ended):
        return _problem(410, OVER, reply, reply.reason)
    if isinstance(reply, c.Gone):
        return _problem(410, GONE, reply, reply.reason)
    if isinstance(reply, c.Refused):
        status = _REFUSALS.get(reply.why, 409)
        later = {"retry-after": "1"} if status == 429 else {}
        return _problem(status, REFUSED, reply, reply.detail or reply.why, later)
    if isinstance(reply, c.Queued):
        return Response(encode(reply), 202, {"retry-after": "1"}, "application/json")
    return Response(encode(reply), 200, media_type="application/json")


def _problem(
    status: int, kind: str, reply: c.Reply, detail: str, headers: dict[str, str] | None = None
) -> Response:
    carried = {type(reply).__name__: fields_of(reply)}
    return Problem(status, kind, detail, headers=headers, reply=carried).response()
