"""The exception hierarchy. Each exception carries the values of its message as attributes.

A message states what happened, to which lock or store, with which values, and what to do.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDeniedError",
    "AcquireTimeoutError",
    "DeadlockError",
    "InvalidNameError",
    "LeaseLostError",
    "LimitError",
    "LockfastError",
    "OutcomeUnknownError",
    "RunFailedError",
    "StaleTokenError",
    "StoreBusyError",
    "StoreError",
    "StoreMisconfiguredError",
    "StoreUnavailableError",
    "UnsupportedError",
    "WatchGapError",
]


class LockfastError(Exception):
    """Base class of all exceptions that Lockfast raises. They can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception would call the class with the message, which is not what it takes.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[LockfastError], args: tuple[Any, ...], fields: dict[str, Any]
) -> LockfastError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(fields)
    return error


AHEAD_COUNTED_MAX = 20
"""How many claims ahead of one that timed out are counted: reading a long queue takes long, and
everyone in it may time out at once."""

HOLDERS_SHOWN_MAX = 5
"""How many holders a message names; a semaphore may have thousands."""


class AcquireTimeoutError(LockfastError, TimeoutError):
    """The lock was not acquired within `timeout` seconds; the caller holds nothing."""

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
        """How many waiting claims were ahead, counted up to AHEAD_COUNTED_MAX; None if unknown."""
        self.leaving = leaving
        """True if the claim is still queued and the keeper is removing it in the background."""
        self.trouble = trouble
        """The store's last error and advice, if the store was unreachable at the timeout."""
        message = f"{name!r} was not acquired " + (
            f"within {timeout:g} s" if timeout else "at once"
        )
        if holders:
            shown = [*holders[:HOLDERS_SHOWN_MAX]]
            if len(holders) > HOLDERS_SHOWN_MAX:
                shown.append(f"{len(holders) - HOLDERS_SHOWN_MAX} more")
            message += f": held by {', '.join(shown)}"
        if ahead:
            or_more = " or more" if ahead >= AHEAD_COUNTED_MAX else ""
            message += f", {ahead}{or_more} ahead in the queue"
        if trouble:
            message += f": the claim lost its place in the queue, and then {trouble}"
        else:
            message += "; retry, use a longer timeout, or inspect it with `lockfast show`"
        if leaving:
            message += " (the claim is being removed from the queue in the background)"
        super().__init__(message)


class LeaseLostError(LockfastError):
    """The lease has ended and another client may hold the lock: stop writing."""

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
    """A guard refused a write because it has already admitted a newer token."""

    def __init__(self, resource: str, token: int, floor: int, *, once: bool = False) -> None:
        self.resource = resource
        self.token = token
        self.floor = floor
        why = (
            f"token {token} was already used"
            if once and token == floor
            else f"token {token} is older than {floor}, already admitted"
        )
        super().__init__(f"write to {resource!r} refused: {why}; acquire the lock again")


class DeadlockError(LockfastError):
    """The claim is part of a deadlock; `cycle` names each lock and its holder."""

    def __init__(self, name: str, cycle: tuple[str, ...], advice: str = "") -> None:
        self.name = name
        self.cycle = cycle
        text = f"deadlock while waiting for {name!r}: {'; '.join(cycle)}"
        super().__init__(f"{text}; {advice or 'release the locks you hold and retry'}")


class RunFailedError(LockfastError):
    """Another client ran the job of `once(wait=True)`, and it failed or crashed there."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"{name!r} failed or crashed at another client and is not run again in this window; "
            "look at its logs, or use retry_crashed=True"
        )


class UnsupportedError(LockfastError):
    """The store or object does not support this operation, by design; nothing was sent."""

    def __init__(self, what: str, why: str, advice: str = "") -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what}: {why}" + (f"; {advice}" if advice else ""))


class InvalidNameError(LockfastError, ValueError):
    """The string is not a valid lock name; nothing was sent."""

    def __init__(self, name: object, why: str) -> None:
        self.name = name
        self.why = why
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "…"
        super().__init__(f"{shown} is not a valid name: {why}")


class LimitError(LockfastError):
    """The request would exceed a limit of the store or the client; nothing was acquired."""

    def __init__(
        self, what: str, value: int, limit: int, advice: str = "", *, text: str = ""
    ) -> None:
        self.what = what
        self.value = value
        self.limit = limit
        text = text or f"{what} would be {value}, the limit is {limit}"
        super().__init__(text + (f"; {advice}" if advice else ""))


class WatchGapError(LockfastError):
    """The store's log no longer has the events after `position`.

    To miss no change, replace your state with `snapshot` and watch again from `resume_at`.
    """

    def __init__(
        self, position: int, oldest: int, resume_at: int, snapshot: tuple[Any, ...]
    ) -> None:
        self.position = position
        self.oldest = oldest
        self.resume_at = resume_at
        self.snapshot = snapshot
        super().__init__(
            f"the log no longer has the events after position {position}, its oldest is {oldest}; "
            f"start from error.snapshot and call watch(after={resume_at})"
        )


class StoreError(LockfastError):
    """The store failed or sent an unexpected reply."""

    def __init__(self, store: str, what: str, advice: str = "") -> None:
        self.store = store
        self.what = what
        self.advice = advice
        super().__init__(f"{store}: {what}" + (f"; {advice}" if advice else ""))


class StoreUnavailableError(StoreError, ConnectionError):
    """The store is unreachable, and the request was certainly not executed."""


class StoreBusyError(StoreUnavailableError):
    """The store answers, but too many requests are ahead of this one, which was not executed."""


CHECK_ADDRESS = "check the address, and whether the server is running"
"""The advice if no connection can be made."""


class OutcomeUnknownError(StoreError):
    """The request was sent, but its reply was lost: it may or may not have been executed."""


class StoreMisconfiguredError(StoreError):
    """The store's configuration is unsafe for locks; nothing was written."""


class AccessDeniedError(StoreMisconfiguredError):
    """The store refused our credentials, or our user lacks a right; nothing was written."""


SURELY_NOT_DONE = (StoreUnavailableError, StoreMisconfiguredError)
"""Errors that guarantee that the store did not execute the request."""
