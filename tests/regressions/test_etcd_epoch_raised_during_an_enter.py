"""Tokens rise, also if the epoch is raised while an enter waits for its turn.

The enter remembered the epoch from before it waited, but compared the one that its client had read
since: the comparison held, and the token was older than those granted meanwhile. Found by
simulator seed 500000560.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lockfast.core import commands as c
from lockfast.stores.etcd.checkup import raise_epoch
from lockfast.stores.etcd.execution import Execution
from tests.etcd.lines import PLACES, Client
from tests.etcd.model import ModelServer

OTHER = (c.Place("lock", "orders/43", "exclusive"),)
HOUR_US = 3_600_000_000


def test_the_token_is_newer_than_those_granted_since(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ModelServer()
    client, rival = Client(server, "s"), Client(server, "r")
    assert isinstance(client.enter(1), c.Granted)  # the client knows the epoch
    client.leave(1)
    granted: list[int] = []
    in_turn = Execution.in_turn

    @asynccontextmanager
    async def raise_meanwhile(self: Execution, prefix: str) -> AsyncIterator[None]:
        monkeypatch.undo()
        server.now_us += HOUR_US
        await raise_epoch(Execution(self.gateway, self.gateway.until_ms(5000)))
        reply = rival.send(c.Enter("r", 1, OTHER))
        assert isinstance(reply, c.Granted)
        granted.append(reply.token)
        client.send(c.Inspect("lock", "orders/43"))  # the client learns of the new epoch
        async with in_turn(self, prefix):
            yield

    monkeypatch.setattr(Execution, "in_turn", raise_meanwhile)
    reply = client.send(c.Enter("s", 2, PLACES))
    assert isinstance(reply, c.Granted)
    assert reply.token > granted[0]
