"""A session whose opening was cut short never raised the base of tokens.

Opening a session creates its nodes, and then raises the base of tokens to the wall clock. If the
connection broke in between, the next attempt found the session open and left the base as it was: in
an ensemble that had lost its data, the first tokens were lower than all that were given before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError, StoreError
from lockfast.runtimes.threads import run
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper import transport as t
from tests.zookeeper.model import ModelNetwork, ModelServer
from tests.zookeeper.test_long_lines import OPEN_MS, A

OPEN = c.Open("client", OPEN_MS, "owner")
ENTER = c.Enter("client", 1, (A,))


class Broken(ModelNetwork):
    """A client to which one answer is lost."""

    def __init__(self, server: ModelServer, lost: int) -> None:
        super().__init__(server)
        self._lost = lost

    async def wait(self, flight: t.Flight, timeout_ms: int) -> Sequence[t.Answer]:
        answers = await super().wait(flight, timeout_ms)
        if answers:
            self._lost -= 1
            if self._lost == 0:
                raise OutcomeUnknownError("zookeeper://model", "lost the connection")
        return answers


def opened(network: Broken) -> c.Reply:
    """Open a session in two attempts, and take the lock."""
    store = ZooKeeperStore("zookeeper://model", "/lockfast/default", network)
    wire = store.caller_wire()
    with pytest.raises(StoreError):
        run(wire.send(OPEN, OPEN_MS))
    assert isinstance(run(wire.send(OPEN, OPEN_MS)), c.Done)
    return run(wire.send(ENTER, OPEN_MS))


@pytest.mark.parametrize("lost", range(1, 7))
def test_tokens_follow_the_wall_clock_whatever_answer_was_lost(lost: int) -> None:
    server = ModelServer()
    granted = opened(Broken(server, lost))
    assert isinstance(granted, c.Granted)
    assert granted.token >= server.now_us - 1_000_000
