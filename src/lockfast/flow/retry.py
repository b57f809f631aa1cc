"""Sending a request again: until a deadline, or for ever with growing pauses."""

from __future__ import annotations

from typing import Final

from lockfast.errors import StoreError
from lockfast.ports import Runtime

RETRY_MS: Final = 20
BACKOFF_MAX_MS: Final = 1000


class Retry:
    """The tries of one request that is safe to repeat, until `give_up_ms`."""

    def __init__(self, runtime: Runtime, give_up_ms: int) -> None:
        self._runtime = runtime
        self._give_up_ms = give_up_ms
        # Words, not errors: an error holds on to the frames it came through.
        self._last = ""
        self._before = ""

    def left_ms(self, now_ms: int) -> int:
        """How long a try that begins now may take."""
        return max(1, self._give_up_ms - now_ms)

    def failed(self, error: StoreError, retry_ms: int = RETRY_MS) -> StoreError | None:
        """None if there is time to try again after `retry_ms`, else what to raise."""
        told = error.what + (f", {error.advice}" if error.advice else "")
        if told != self._last:
            self._before, self._last = self._last, told
        if self._runtime.now_ms() + retry_ms < self._give_up_ms:
            return None
        if not self._before:
            return error
        # The last try is often cut short, and knows no more than that.
        what = f"{error.what} (before that: {self._before})"
        return type(error)(error.store, what, error.advice)


class Backoff:
    """When a duty that failed may be tried again: each pause is twice the one before."""

    def __init__(self, ttl_ms: int) -> None:
        self._pause_max_ms = min(BACKOFF_MAX_MS, ttl_ms // 10 + 1)
        self.succeeded()

    def succeeded(self) -> None:
        self.at_ms = 0
        self._pause_ms = RETRY_MS

    def failed(self, now_ms: int) -> None:
        self.at_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._pause_max_ms)
