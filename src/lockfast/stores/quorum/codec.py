"""The encoding of requests as arguments of the Redis script, and of its results as answers."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from lockfast.core.reasons import CLOSED, EXPIRED
from lockfast.stores.quorum import messages as m

KEYS: Final = ("rows", "index", "idle", "due")

_LOCK: Final = (
    "HIGHEST", "USED", "SESSION", "N", "BALLOT", "ACTOR", "VALUE", "SINCE", "HOLD", "DELAY",
    "SHUT", "SHUT_BY", "WAITING", "FLIGHT",
)  # fmt: skip
_SESSION: Final = (
    "TTL", "OWNER", "METADATA", "INBOX", "PROCESS", "DEADLINE", "RENEWALS", "ENDED", "ENDED_MS",
    "COUNT", "SUM",
)  # fmt: skip
_DEFINITIONS: Final[dict[str, object]] = {
    "EXPIRED": EXPIRED,
    "CLOSED": CLOSED,
    **{name: place for place, name in enumerate(_LOCK, 1)},
    **{name: place for place, name in enumerate(_SESSION, 1)},
}
"""The values of `$NAME` in the script. Row fields are numbers and not variables, because each Lua
function would have to capture the variables that it uses."""


@cache
def script() -> bytes:
    source = (Path(__file__).parent / "node.lua").read_text(encoding="utf-8")
    return re.sub(r"\$([A-Z][A-Z_]*)", lambda name: str(_DEFINITIONS[name[1]]), source).encode()


@cache
def script_sha() -> str:
    return hashlib.sha1(script(), usedforsecurity=False).hexdigest()


def keys_of(namespace: str) -> tuple[str, ...]:
    """Return the keys of a namespace; the braces place them on one shard of a cluster."""
    return tuple(f"{{lockfast-quorum:{namespace}}}:{key}" for key in KEYS)


def inbox_of(namespace: str, session: str) -> str:
    """Return the channel on which a session is woken."""
    return f"{{lockfast-quorum:{namespace}}}:wake:{session}"


def call_of(request: m.Request) -> tuple[str, list[str | int]]:
    """Return the name of a request and its arguments."""
    return m.NAMES[type(request)], _arguments(request)


def _arguments(request: m.Request) -> list[str | int]:
    if isinstance(request, m.Take):
        arguments = [_plain(field) for field in request[:6]]
        arguments += [_maybe(request.value), *request[7:12]]
        return [*arguments, *request.open] if request.open is not None else arguments
    if isinstance(request, m.Sync):
        arguments = [*request.open, request.flight, len(request.claims)]
        for claim in request.claims:
            arguments += [*claim[:5], _maybe(claim.value), claim[6], int(claim.restore)]
        return arguments
    if isinstance(request, m.End):
        renewals = None if request.renewals is None else str(request.renewals)
        return [request.session, request.reason, _maybe(renewals)]
    return [_plain(field) for field in request]


def _plain(field: Any) -> str | int:
    return int(field) if isinstance(field, bool) else field


def _maybe(text: str | None) -> str:
    return "" if text is None else f"+{text}"


def answer_to(request: m.Request, found: Any) -> m.Answer:
    """Decode what the script returned as the answer of the reference."""
    if isinstance(request, m.Take):
        # An accepted ballot that no contender waits for is answered by the highest one.
        if isinstance(found, int):
            return m.Taken(m.OK, highest=found)
        taken = m.Taken(*found)
        return taken._replace(holder=_holder(taken.holder))
    if isinstance(found, int):
        return m.Given(m.OK, found=bool(found))
    if isinstance(request, m.Keep):
        return m.Kept(*found)
    if isinstance(request, m.Sync | m.ReadClaims):
        claims = tuple(m.HeldClaim(*claim) for claim in found[-1])
        return m.SessionClaims(*found)._replace(claims=claims)
    if isinstance(request, m.ReadLocks):
        views, more = found
        locks = ([*view[:-1], _holder(view[-1])] for view in views)
        return m.Locks(tuple(m.LockView(*view) for view in locks), bool(more))
    if isinstance(request, m.ReadSessions):
        return m.NodeSessions(tuple(m.NodeSession(*view) for view in found[0]), bool(found[1]))
    status, reason, was_found = found
    return m.Given(status, reason, bool(was_found))


def _holder(found: Any) -> m.Holder | None:
    return None if found is None else m.Holder(*found)
