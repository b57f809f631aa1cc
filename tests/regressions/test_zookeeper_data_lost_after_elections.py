"""Tokens went back on ZooKeeper if a client outlived the data of its ensemble.

A new ensemble begins with a lower zxid. The client derived the base of tokens from the highest zxid
that it had ever seen, so the tokens that followed lagged 34 s behind for each earlier election.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.sim.zookeeper.state import State
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client


def test_tokens_rise_for_a_client_that_outlives_the_data() -> None:
    server = ModelServer()
    for _ in range(3):
        server.state.elect()
    client = Client(server, "before")
    before = client.enter()
    server.state = State(server._fired)
    server.now_us += 1_000_000
    client.id = "after"
    after = client.enter()
    assert isinstance(before, c.Granted)
    assert isinstance(after, c.Granted)
    assert after.token > before.token
