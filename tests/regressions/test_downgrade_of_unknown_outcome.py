"""A downgrade that was executed but not confirmed left a reader that believed it was alone.

When interrupted, it was undone like any conversion: by requesting the mode it had before. For a
downgrade that asks for more. The readers admitted by then still held, so the store queued the
request, while the client went on as the writer.
"""

from __future__ import annotations

from typing import Any

import pytest

import lockfast
from lockfast.core.commands import Convert


class InterruptedOnce:
    """A wire that is interrupted after the store has converted a claim and before it can reply."""

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
