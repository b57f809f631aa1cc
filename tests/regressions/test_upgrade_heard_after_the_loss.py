"""An upgrade whose reply came after the lease was lost returned normally.

The store had lost the grant (a power cut), and granted the claim again when it was asked to convert
it. The client had declared the lease lost by then, so it ignored that reply, yet told its caller
that it was the writer, with the token of the lost lease. Found by simulator seed 31013313, in a
schedule that another bug had produced.
"""

from __future__ import annotations

from typing import Any

import pytest

import lockfast


def test_an_upgrade_of_a_lost_lease_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with lockfast.connect("memory://late-upgrade") as client:
        lease = client.rwlock("book").update().acquire()
        (session,) = client._core.sessions()
        request = client._core.request

        async def slowly(command: Any, timeout_ms: int | None = None) -> Any:
            reply = await request(command, timeout_ms)
            session.lost(lease._holding, "the store has no record of it")
            return reply

        monkeypatch.setattr(client._core, "request", slowly)
        with pytest.raises(lockfast.LeaseLostError, match="no record"):
            lease.upgrade()
