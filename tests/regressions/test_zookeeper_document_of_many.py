"""A queue's document that is too large for ZooKeeper is refused by the client.

A server cuts the connection of a client that sends it more than 1 MiB. A document with that much,
such as that of a party of 250 members with values of 4 kB, was sent again and again: each attempt
made all leases of the client uncertain, and the acquire ended with OutcomeUnknownError. If waiting
readers became too many, no claim could be granted or released any more.
"""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.stores.zookeeper import steps
from lockfast.stores.zookeeper import transport as t
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client

SHARED = (c.Place("lock", "a", "shared"),)
VALUE = "é" * 200
REQUEST_MAX = 40_000
"""Less than that of a server, so that the test is fast."""


def refuse_large(request: t.Request) -> None:
    if isinstance(request, t.Multi):
        assert sum(len(getattr(one, "data", b"")) for one in request.operations) < REQUEST_MAX


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setattr(steps, "REQUEST_MAX", REQUEST_MAX, raising=False)
    monkeypatch.setattr(steps, "ROOM", REQUEST_MAX // 4, raising=False)
    found = ModelServer()
    found.before = refuse_large
    return found


def enter(client: Client, n: int, **rest: Any) -> c.Reply:
    return client.enter(n, places=SHARED, value=VALUE, **rest)


def test_a_holder_too_many_is_refused(server: ModelServer) -> None:
    client, other = Client(server, "client"), Client(server, "other")
    held = 0
    while isinstance(reply := enter(client, held + 1), c.Granted):
        held += 1
    assert isinstance(reply, c.Refused)
    assert reply.why == c.WHY_TOO_LARGE
    assert held > 20
    refused = enter(other, 1)
    assert isinstance(refused, c.Refused)
    for n in range(1, held + 1):
        assert client.leave(n) == c.Done()
    assert isinstance(other.enter(2), c.Granted)


def test_waiting_readers_are_granted_while_there_is_room(server: ModelServer) -> None:
    writer, readers = Client(server, "writer"), Client(server, "readers")
    assert isinstance(writer.enter(), c.Granted)
    count = 100
    for n in range(1, count + 1):
        assert isinstance(enter(readers, n), c.Queued)
    assert writer.leave() == c.Done()
    for n in range(1, count + 1):
        reply = readers.look(n)
        assert isinstance(reply, c.Granted | c.Queued)
    assert isinstance(reply, c.Queued)
    renewed = readers.send(c.Renew(readers.id, 0, 0, 0, (count,)))
    assert isinstance(renewed, c.Renewed)
    for n in range(1, count + 1):
        assert isinstance(readers.look(n), c.Granted)
        assert readers.leave(n) == c.Done()
    assert isinstance(writer.enter(2), c.Granted)
