"""What the gateway's error replies mean to a caller."""

from __future__ import annotations

import json
import ssl
from typing import Final

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)


class CompactedError(Exception):
    """The revision asked for is no longer kept; `revision` is the oldest that is."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        super().__init__(f"compacted up to {revision}")


class LeaseGoneError(Exception):
    """The session's etcd lease is over."""


class TokenRefusedError(Exception):
    """The authentication token is not, or no longer, good: get another."""


_ELSEWHERE: Final = {
    "etcdserver: no leader": ("has no leader", "most members must run and reach each other"),
    "etcdserver: not capable": ("is starting", "try again soon"),
    "etcdserver: server stopped": ("is stopping", "try again soon"),
    "etcdserver: too many requests": ("has too much to do", "try again soon"),
    "raft: stopped": ("is stopping", "try again soon"),
    "connection refused": ("is starting or stopping", "try again soon"),
}
"""Nothing was done; another member may do it."""

_IN_DOUBT: Final = {
    "etcdserver: request timed out": (
        "did not agree on it in time",
        "most members must run and reach each other",
    ),
    "etcdserver: leader changed": ("changed its leader meanwhile", "try again"),
    "context deadline exceeded": ("did not answer in time", "try again"),
    "transport is closing": ("ended the connection", "try again"),
    "error reading from server": ("ended the connection", "try again"),
    "context canceled": ("gave the request up", "try again"),
}
"""It may have been done."""

_FULL: Final = (
    "is out of space (alarm NOSPACE) and takes no writes",
    "compact and defragment it, then disarm the alarm: `etcdctl alarm disarm`",
)

_MISCONFIGURED: Final = {
    "authentication failed": ("refused the user or password", "look at the URL"),
    "user name is empty": ("wants a user", "write etcd://user:password@host"),
    "user name not found": ("has no such user", "look at the URL"),
    "permission denied": ("does not let this user do what is needed", "see docs/stores/etcd.md"),
    "authentication is not enabled": ("has no users", "leave user and password out of the URL"),
    "cluster ID mismatch": ("is a member of another cluster", "look at the endpoints"),
    "too many operations": ("allows too few operations", "set --max-txn-ops=128 or more"),
    "request is too large": ("refused a request for its size", "raise --max-request-bytes"),
    "Not Found": ("has no JSON gateway", "it must be etcd 3.4 or newer, with its gateway on"),
}
"""Nothing will ever work like this."""


def translate(label: str, status: int, body: bytes) -> Exception:
    """The error of an error reply; the server's own words stand in parentheses."""
    said = _message(body) or f"HTTP {status}"
    if "lease not found" in said:
        return LeaseGoneError(said)
    if "has been compacted" in said:
        return CompactedError()
    if "invalid auth token" in said or "revision of auth store is old" in said:
        return TokenRefusedError(said)
    if "database space exceeded" in said:
        what, advice = _FULL
        return StoreUnavailableError(label, f"{what} ({said})", advice)
    for table, kind in (
        (_IN_DOUBT, OutcomeUnknownError),
        (_ELSEWHERE, StoreUnavailableError),
        (_MISCONFIGURED, StoreMisconfiguredError),
    ):
        for mark, (what, advice) in table.items():
            if mark in said:
                return kind(label, f"{what} ({said})", advice)
    if status in (502, 503, 504):
        return OutcomeUnknownError(label, f"answered {said!r}", "try again soon")
    return StoreError(label, f"answered {said!r}", "please report this")


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError:
        return " ".join(body.decode(errors="replace").split())[:300]
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict):
        error = error.get("message", "")
    return str(error)[:300]


def unreachable(label: str, error: BaseException) -> StoreError:
    """Why there is no connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return StoreMisconfiguredError(
            label,
            f"its certificate is not accepted ({error.verify_message})",
            "write ?ca=file, or have the certificate renewed",
        )
    if isinstance(error, ssl.SSLError) and "CERTIFICATE" in str(error).upper():
        return no_certificate(label, error)
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(label, "did not answer in time")
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreUnavailableError(label, f"cannot be reached ({reason})")


def no_certificate(label: str, error: BaseException) -> StoreMisconfiguredError:
    return StoreMisconfiguredError(
        label, f"did not accept our certificate ({error})", "write ?cert=file&key=file"
    )
