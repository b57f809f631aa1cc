"""Retry policies: until a deadline (`Retry`), or without end and with backoff (`Backoff`)."""

from __future__ import annotations

from typing import Final

from lockfast.errors import StoreError
from lockfast.ports import Runtime

RETRY_MS: Final = 20
BACKOFF_MAX_MS: Final = 1000


class Retry:
    """Retries one idempotent request until `give_up_ms`."""

    # Keep the text, not the exception, which would keep its frames alive.
    _last = ""
    _before = ""

    def __init__(self, runtime: Runtime, give_up_ms: int) -> None:
        self._runtime = runtime
        self._give_up_ms = give_up_ms

    def left_ms(self, now_ms: int) -> int:
        """Return the timeout of an attempt that starts now."""
        return max(1, self._give_up_ms - now_ms)

    def failed(self, error: StoreError, retry_ms: int = RETRY_MS) -> StoreError | None:
        """Return None if there is time for a retry after `retry_ms`, else the error to raise."""
        told = error.what + (f", {error.advice}" if error.advice else "")
        if told != self._last:
            self._before, self._last = self._last, told
        if self._runtime.now_ms() + retry_ms < self._give_up_ms:
            return None
        if not self._before:
            return error
        # The last attempt often only times out; the one before it may name the cause.
        what = f"{error.what} (before that: {self._before})"
        return type(error)(error.store, what, error.advice)


class Backoff:
    """Exponential backoff without end: each pause is twice the previous one, up to a second."""

    def __init__(self, pause_max_ms: int = BACKOFF_MAX_MS) -> None:
        self._pause_max_ms = min(BACKOFF_MAX_MS, pause_max_ms)
        self.succeeded()

    def succeeded(self) -> None:
        self.at_ms = 0
        self._pause_ms = RETRY_MS

    def failed(self, now_ms: int) -> None:
        self.at_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._pause_max_ms)
