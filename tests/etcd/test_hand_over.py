"""The hand-over to a single waiter: what it costs, and what the holder knows."""

from __future__ import annotations

from lockfast.core import commands as c
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer


def test_a_holder_hands_over_to_its_first_waiter_in_one_request() -> None:
    """Whoever joins an empty queue tells the holder, whose release needs no read then."""
    server = ModelServer()
    holder, waiter = Client(server, "s0"), Client(server, "s1")
    assert isinstance(holder.enter(1), c.Granted)
    assert isinstance(waiter.enter(1), c.Queued)
    holder.listen()
    before = server.requests
    holder.leave(1)
    assert server.requests - before == 1
    waiter.listen()
    assert waiter.granted == [1]


def test_a_holder_that_was_told_of_its_heir_passes_over_nobody() -> None:
    """What it was told may be out of date: the heir may have left, and others may have come."""
    for others in ([], ["s2"], ["s2", "s3"]):
        for is_gone in (False, True):
            server = ModelServer()
            holder, waiter = Client(server, "s0"), Client(server, "s1")
            assert isinstance(holder.enter(1), c.Granted)
            assert isinstance(waiter.enter(1), c.Queued)
            holder.listen()
            later = [Client(server, name) for name in others]
            for client in later:
                assert isinstance(client.enter(1), c.Queued)
            if is_gone:
                waiter.leave(1)
            holder.leave(1)
            line = later if is_gone else [waiter, *later]
            for i, client in enumerate(line):
                for other in (waiter, *later):
                    other.listen()
                assert [other.granted for other in line[i:]] == [[1], *([] for _ in line[i + 1 :])]
                client.granted.clear()
                client.leave(1)
            assert isinstance(holder.enter(2), c.Granted)
