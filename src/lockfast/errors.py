"""Every error Lockfast raises, in one tree, each with its values as fields.

A message says what happened, to what, with which values, and what to do now.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AcquireTimeoutError",
    "DeadlockError",
    "InvalidNameError",
    "LeaseLostError",
    "LimitError",
    "LockfastError",
    "OutcomeUnknownError",
    "StaleTokenError",
    "StoreError",
    "StoreMisconfiguredError",
    "StoreUnavailableError",
    "UnsupportedError",
    "WatchGapError",
]


class LockfastError(Exception):
    """The root of everything Lockfast raises on purpose."""


class AcquireTimeoutError(LockfastError, TimeoutError):
    """The lock was not obtained within `timeout`; nothing is held."""

    def __init__(
        self,
        name: str,
        timeout: float,
        *,
        holders: tuple[str, ...] = (),
        ahead: int | None = None,
        leaving: bool = False,
        trouble: str = "",
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.holders = holders
        self.ahead = ahead
        self.leaving = leaving
        """True while the queue place is still being given back in the background."""
        self.trouble = trouble
        """What the store said last, with its advice, if it could not be asked in the end."""
        message = f"{name!r} was not obtained within {timeout:g} s"
        if holders:
            message += f": held by {', '.join(holders)}"
        if ahead:
            message += f", {ahead} ahead in the queue"
        if trouble:
            message += f": it waited, and lost its place; then {trouble}"
        else:
            message += "; try again, wait longer, or look at `lockfast show`"
        if leaving:
            message += " (our place in the queue is still being given back)"
        super().__init__(message)


class LeaseLostError(LockfastError):
    """The lease is over, and another holder may be at work: stop writing."""

    def __init__(
        self,
        name: str,
        token: int | None,
        reason: str,
        *,
        session: str = "",
        by: str = "",
        ago_ms: int | None = None,
    ) -> None:
        self.name = name
        self.token = token
        self.reason = reason
        self.session = session
        self.by = by
        self.ago_ms = ago_ms
        which = f" (token {token})" if token is not None else ""
        when = f" {ago_ms} ms ago" if ago_ms is not None else ""
        super().__init__(
            f"lease on {name!r}{which} was lost{when}: {reason}; stop writing and acquire again"
        )


class StaleTokenError(LockfastError):
    """A guard refused a write because a newer token was admitted before it."""

    def __init__(self, resource: str, token: int, floor: int, *, once: bool = False) -> None:
        self.resource = resource
        self.token = token
        self.floor = floor
        why = (
            f"token {token} was used already"
            if once and token == floor
            else f"token {token} is older than {floor}, already admitted"
        )
        super().__init__(f"write to {resource!r} refused: {why}; acquire the lock again")


class DeadlockError(LockfastError):
    """Waiting would never end: `cycle` names each lock and who holds it."""

    def __init__(self, name: str, cycle: tuple[str, ...], advice: str = "") -> None:
        self.name = name
        self.cycle = cycle
        text = f"waiting for {name!r} would never end: {'; '.join(cycle)}"
        super().__init__(f"{text}; {advice or 'release what you hold and try again'}")


class UnsupportedError(LockfastError):
    """What was asked for cannot be had here, by design; nothing was sent."""

    def __init__(self, what: str, why: str, advice: str = "") -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what}: {why}" + (f"; {advice}" if advice else ""))


class InvalidNameError(LockfastError, ValueError):
    """The name cannot name a lock; nothing was sent."""

    def __init__(self, name: object, why: str) -> None:
        self.name = name
        self.why = why
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "…"
        super().__init__(f"{shown} cannot name a lock: {why}")


class LimitError(LockfastError):
    """A limit of the store or of the client was reached; nothing was taken."""

    def __init__(
        self, what: str, value: int, limit: int, advice: str = "", *, text: str = ""
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        text = text or f"{what} would be {value}, the limit is {limit}"
        super().__init__(text + (f"; {advice}" if advice else ""))


class WatchGapError(LockfastError):
    """Events after `position` are no longer kept; `snapshot` is the present state.

    Go on from `resume_at` after taking over `snapshot`: nothing is missed then.
    """

    def __init__(
        self, position: int, oldest: int, resume_at: int, snapshot: tuple[Any, ...]
    ) -> None:
        self.position = position
        self.oldest = oldest
        self.resume_at = resume_at
        self.snapshot = snapshot
        super().__init__(
            f"events after position {position} are gone, the oldest kept is {oldest}; "
            f"take over error.snapshot and watch on from {resume_at}"
        )


class StoreError(LockfastError):
    """The store answered something we cannot go on with."""

    def __init__(self, store: str, what: str, advice: str = "") -> None:
        self.store = store
        self.what = what
        self.advice = advice
        super().__init__(f"{store}: {what}" + (f"; {advice}" if advice else ""))


class StoreUnavailableError(StoreError, ConnectionError):
    """The store could not be reached: the request was surely not carried out."""


class OutcomeUnknownError(StoreError):
    """The request may or may not have been carried out."""


class StoreMisconfiguredError(StoreError):
    """The store would break our promises as it is set up; nothing was written."""


SURELY_NOT_DONE = (StoreUnavailableError, StoreMisconfiguredError)
"""Errors of a request that never reached the store, or that it did not carry out."""
