"""Translate etcd's error replies into exceptions."""

from __future__ import annotations

from typing import Final

from lockfast.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.etcd.transport import Json


class CompactedError(Exception):
    """The requested revision has been compacted; `revision` is the oldest available one."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        super().__init__(f"compacted up to {revision}")


class LeaseGoneError(Exception):
    """The request names an etcd lease that has expired; nothing was executed."""


class LeaseExistsError(Exception):
    """An etcd lease with this ID already exists."""


class DuplicateKeyError(Exception):
    """Two transactions of one request write the same key; nothing was executed."""


class SessionMovedError(Exception):
    """Another store object has become the home of the session."""


class TokenRefusedError(Exception):
    """The authentication token is invalid or has expired."""


_SPECIAL: Final[dict[str, type[Exception]]] = {
    "lease not found": LeaseGoneError,
    "lease already exists": LeaseExistsError,
    "duplicate key given": DuplicateKeyError,
    "invalid auth token": TokenRefusedError,
    "revision of auth store is old": TokenRefusedError,
}
"""Errors that the store itself handles."""

_MAJORITY: Final = "most members must run and reach each other"
_MEANING: Final[dict[type[StoreError], dict[str, tuple[str, str]]]] = {
    # The request may have been executed.
    OutcomeUnknownError: {
        "etcdserver: request timed out": ("did not commit the request in time", _MAJORITY),
        "etcdserver: leader changed": ("changed its leader during the request", "retry"),
        "context deadline exceeded": ("did not answer in time", "retry"),
        "transport is closing": ("closed the connection", "retry"),
        "error reading from server": ("closed the connection", "retry"),
        "context canceled": ("cancelled the request", "retry"),
    },
    # Not executed; another member may be able to serve the request.
    StoreUnavailableError: {
        "etcdserver: no leader": ("has no leader", _MAJORITY),
        "etcdserver: not capable": ("is starting", "retry shortly"),
        "etcdserver: server stopped": ("is stopping", "retry shortly"),
        "etcdserver: too many requests": ("is overloaded", "retry shortly"),
        "raft: stopped": ("is stopping", "retry shortly"),
        "connection refused": ("is starting or stopping", "retry shortly"),
        "database space exceeded": (
            "is out of space (alarm NOSPACE) and accepts no writes",
            "compact and defragment it, then run `etcdctl alarm disarm`",
        ),
    },
    # Retrying helps only with other credentials or rights.
    AccessDeniedError: {
        "authentication failed": ("refused the user or password", "check the URL"),
        "user name is empty": ("requires a user", "write etcd://user:password@host"),
        "user name not found": ("has no such user", "check the URL"),
        "permission denied": ("denies this user a needed permission", "see docs/stores/etcd.md"),
    },
    # Retrying cannot help.
    StoreMisconfiguredError: {
        "authentication is not enabled": ("has no users", "remove user and password from the URL"),
        "cluster ID mismatch": ("is a member of another cluster", "check the members in the URL"),
        "too many operations": ("allows too few operations", "set --max-txn-ops=128 or more"),
        "request is too large": (
            "refused a request for its size",
            "raise --max-request-bytes",
        ),
        "Not Found": ("has no JSON gateway", "use etcd 3.4 or newer with its gateway enabled"),
    },
}
"""What etcd's other errors mean, and what to do about them."""


def error_of(label: str, reply: Json) -> Exception | None:
    """Return the error that a reply reports, or None. The server's message is in parentheses."""
    if "error" not in reply and not ("code" in reply and "message" in reply):
        return None
    error = reply.get("error", reply.get("message"))
    said = str(error.get("message", "") if isinstance(error, dict) else error)[:300]
    for mark, special in _SPECIAL.items():
        if mark in said:
            return special(said)
    if "has been compacted" in said:
        return CompactedError()
    for kind, meanings in _MEANING.items():
        for mark, (what, advice) in meanings.items():
            if mark in said:
                return kind(label, f"{what} ({said})", advice)
    return StoreError(label, f"answered {said!r}", "please report this")
