"""A job of `once(retry_crashed=True)` ran twice in its window when its release was lost.

Its window closes with the release. When the store did not answer it, the keeper released the claim
like any other, without closing the window.
"""

from __future__ import annotations

from typing import Any

import lockfast
from lockfast.core.commands import Leave
from lockfast.errors import StoreUnavailableError


class DeafToLeave:
    """A wire that loses every release."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire

    async def send(self, command: Any, timeout_ms: int) -> Any:
        if isinstance(command, Leave):
            raise StoreUnavailableError("the store", "cannot be reached")
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


def test_the_window_closes_when_the_keeper_gives_the_claim_back() -> None:
    with lockfast.connect("memory://once-unheard") as client:
        client._core.wire = DeafToLeave(client._core.wire)
        runs: list[int] = []

        @client.once("nightly", at_least=3600, at_most=3600, retry_crashed=True)
        def job() -> None:
            runs.append(1)

        job()

        (session,) = client._core.sessions()
        while session.next_in_outbox() is not None:
            pass  # until the keeper has released it
        job()

        assert runs == [1]
