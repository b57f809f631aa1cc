"""A request of which an earlier attempt may have been executed was reported as not executed.

Its first attempt was sent and not answered, the last one could not be sent.
"""

from __future__ import annotations

import pytest

import lockfast
from lockfast.core.commands import Command, Inspect, Reply, Revoke
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.runtimes.threads import run


class CutOff:
    """A wire that breaks while the first request is in flight."""

    def __init__(self) -> None:
        self.sent = 0

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        self.sent += 1
        if self.sent == 1:
            raise OutcomeUnknownError("store", "connection reset")
        raise StoreUnavailableError("store", "connection refused")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (Revoke("session", 1, "admin", "stuck"), OutcomeUnknownError),
        (Inspect("lock", "a"), StoreUnavailableError),
    ],
    ids=["write", "read"],
)
def test_its_outcome_is_unknown(command: Command, kind: type[Exception]) -> None:
    with lockfast.connect("memory://") as client:
        wire = CutOff()
        with pytest.raises(kind, match=r"connection refused \(before that: connection reset\)"):
            run(client._core.request(command, 100, wire=wire))
        assert wire.sent > 1
