"""Sending a request again while there is time."""

from __future__ import annotations

from typing import Final

from lockfast.errors import StoreError
from lockfast.ports import Runtime

RETRY_MS: Final = 20


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
