"""A downgrade that was carried out but not heard of left a reader who believed to be alone.

Interrupted, it was taken back like any conversion: by asking for the mode it had before.
That was to ask for more. The readers let in by then were still there, so the store made it
wait, while its client went on as the writer.
"""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from lockfast.core.commands import Convert


class InterruptedOnce:
    """A wire that is interrupted after the store has converted a claim, before it can tell."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._interrupt = True

    async def send(self, command: Any, timeout_ms: int) -> Any:
        reply = await self._wire.send(command, timeout_ms)
        if isinstance(command, Convert) and self._interrupt:
            self._interrupt = False
            raise KeyboardInterrupt
        return reply

    def close(self) -> None:
        self._wire.close()


def test_an_interrupted_downgrade_is_carried_through() -> None:
    url = "memory://unheard-downgrade"
    with lockfast.connect(url) as client, lockfast.connect(url) as other:
        lease = client.rwlock("book").write().acquire()
        waiting = lease._holding
        client._core.wire = InterruptedOnce(client._core.wire)

        with pytest.raises(KeyboardInterrupt):
            lease.downgrade()

        reader = other.rwlock("book").read().acquire()
        (session,) = client._core.sessions()
        while session.next_in_outbox() is not None:
            pass  # until the keeper has settled it
        modes = {claim.mode for claim in client.inspect("book").holders}
        assert modes == {"shared"} == {waiting.mode}
        reader.release()
        lease.release()
