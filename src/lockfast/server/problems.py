"""Problem documents (RFC 9457): the exception, and its response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from lockfast.core.codec import CodecError, encode_fields
from lockfast.errors import (
    InvalidNameError,
    LockfastError,
    OutcomeUnknownError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.stores.lockserver import errors as kinds
from lockfast.stores.lockserver.errors import TYPES

MEDIA_TYPE: Final = "application/problem+json"

INVALID: Final = "invalid-request"
NOT_FOUND: Final = "not-found"
TOO_LARGE: Final = "too-large"
SLOW: Final = "request-timeout"
MISDIRECTED: Final = "misdirected-host"
CROSS_ORIGIN: Final = "cross-origin"
MEDIA: Final = "unsupported-media-type"
DRAINING: Final = "draining"
INTERNAL: Final = "internal-error"
HELD: Final = "held"
OVER: Final = "session-over"
GONE: Final = "claim-gone"
REFUSED: Final = "refused"

TITLES: Final[Mapping[str, str]] = {
    kinds.UNAUTHORIZED: "Authentication is required",
    kinds.FORBIDDEN: "This principal has no right to do this",
    kinds.UNSUPPORTED: "The store cannot do this",
    kinds.UNAVAILABLE: "The store cannot be reached; nothing was done",
    kinds.UNKNOWN_OUTCOME: "The store did not answer; the command may have been executed",
    kinds.MISCONFIGURED: "The store is not usable",
    kinds.QUOTA: "A quota is exhausted",
    INVALID: "The request is malformed",
    NOT_FOUND: "There is nothing at this address",
    TOO_LARGE: "The request is too large",
    SLOW: "The request did not arrive in time",
    MISDIRECTED: "This server does not serve that host",
    CROSS_ORIGIN: "Requests from other origins are refused",
    MEDIA: "The body has to be application/json",
    DRAINING: "The server is shutting down",
    INTERNAL: "The server failed; please report this",
    HELD: "The lock is held",
    OVER: "The session is over",
    GONE: "The claim has ended",
    REFUSED: "The request can never succeed as sent",
}
"""The title of every problem type."""


class Problem(Exception):
    """A request that is answered with a problem document."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members

    def document(self) -> dict[str, Any]:
        found = {"type": TYPES + self.kind, "title": TITLES[self.kind], "status": self.status}
        if self.detail:
            found["detail"] = self.detail
        return {**found, **self.members}

    def response(self) -> Response:
        return Response(encode_fields(self.document()), self.status, self.headers, MEDIA_TYPE)


def unauthorized(detail: str = "") -> Problem:
    return Problem(
        401,
        kinds.UNAUTHORIZED,
        detail or "send a valid token: Authorization: Bearer lf_…",
        headers={"www-authenticate": 'Bearer realm="lockfast"'},
    )


def forbidden(detail: str) -> Problem:
    return Problem(403, kinds.FORBIDDEN, detail)


def over_quota(detail: str, retry_s: int = 1) -> Problem:
    return Problem(429, kinds.QUOTA, detail, headers={"retry-after": str(retry_s)})


def problem_of(error: Exception) -> Problem:
    """Return the problem for an exception raised by a request."""
    retry = {"retry-after": "1"}
    if isinstance(error, Problem):
        return error
    if isinstance(error, CodecError | InvalidNameError):
        return Problem(422, INVALID, str(error))
    if isinstance(error, UnsupportedError):
        return Problem(501, kinds.UNSUPPORTED, str(error))
    # The store's label and the advice for operators are not for clients.
    if isinstance(error, StoreUnavailableError):
        return Problem(503, kinds.UNAVAILABLE, error.what, headers=retry)
    if isinstance(error, StoreMisconfiguredError):
        return Problem(503, kinds.MISCONFIGURED, "its operator has to repair it", headers=retry)
    if isinstance(error, OutcomeUnknownError):
        return Problem(503, kinds.UNKNOWN_OUTCOME, error.what, headers=retry)
    if isinstance(error, LockfastError):
        return Problem(503, kinds.UNKNOWN_OUTCOME, "", headers=retry)
    return Problem(500, INTERNAL)
