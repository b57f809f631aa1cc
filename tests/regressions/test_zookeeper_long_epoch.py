"""Tokens went back on ZooKeeper after an election that followed a long epoch.

An epoch counts as a fixed number of writes in a token. The number is doubled before the counter of
writes reaches it, but only when a session was opened: if no session was opened during millions of
writes, tokens of the next epoch were lower than the last ones.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.stores.zookeeper import layout
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client


def lock(name: str) -> tuple[c.Place, ...]:
    return (c.Place("lock", name, "exclusive"),)


def test_tokens_rise_over_an_election_although_no_session_was_opened() -> None:
    server = ModelServer()
    client = Client(server, "s")
    assert isinstance(client.enter(1), c.Granted)
    server.state.zxid += 3 * layout.STEP
    client.send(c.Renew("s", 1, 0, 1, ()))
    before = client.enter(2, places=lock("b"), open=None)
    server.state.elect()
    after = client.enter(3, places=lock("c"), open=None)
    assert isinstance(before, c.Granted)
    assert isinstance(after, c.Granted)
    assert after.token > before.token
