"""Translate a server's problem documents (RFC 9457) into exceptions."""

from __future__ import annotations

from typing import Any, Final

from lockfast.errors import (
    AccessDeniedError,
    LockfastError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)

TYPES: Final = "urn:lockfast:problem:"
"""The prefix of every problem type. The rest never changes its meaning."""

UNAUTHORIZED: Final = "unauthorized"
FORBIDDEN: Final = "forbidden"
UNSUPPORTED: Final = "unsupported"
UNAVAILABLE: Final = "store-unavailable"
UNKNOWN_OUTCOME: Final = "outcome-unknown"
MISCONFIGURED: Final = "store-misconfigured"
QUOTA: Final = "quota"


def error_of(label: str, status: int, problem: Any) -> LockfastError:
    """Return the exception for a reply without a result. `problem` is its JSON, or None."""
    kind, detail = "", f"answered HTTP {status}"
    if isinstance(problem, dict):
        kind = str(problem.get("type", "")).removeprefix(TYPES)
        # A proxy may send anything: bound what may reach a terminal.
        detail = " ".join(str(problem.get("detail") or problem.get("title") or detail).split())[
            :300
        ]
    if kind == UNSUPPORTED:
        what, _, why = detail.partition(": ")
        return UnsupportedError(what, why or "the server's store cannot do this")
    if kind == UNAUTHORIZED or status == 401:
        return AccessDeniedError(
            label,
            f"did not accept our credentials ({detail})",
            "check ?token_file= or LOCKFAST_TOKEN",
        )
    if kind == FORBIDDEN or status == 403:
        return AccessDeniedError(
            label, f"refused: {detail}", "ask the server's operator for the right"
        )
    if status == 421:
        return StoreMisconfiguredError(
            label,
            f"does not serve this host name ({detail})",
            "use a name that it serves, or add this one there",
        )
    if kind == QUOTA or status == 429:
        return StoreUnavailableError(label, f"refused for now: {detail}", "send fewer requests")
    if kind == MISCONFIGURED:
        return StoreMisconfiguredError(label, detail)
    if kind == UNAVAILABLE:
        return StoreUnavailableError(label, detail)
    if kind == UNKNOWN_OUTCOME or status >= 500:
        return OutcomeUnknownError(label, detail)
    return StoreError(label, detail, "check what listens at this address")
