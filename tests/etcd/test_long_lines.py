"""A queue of any length is served in order, and a grant costs the same at any length."""

from __future__ import annotations

from base64 import b64decode

import pytest

from lockfast.core import commands as c
from lockfast.stores.etcd.shortcuts import LONG
from lockfast.stores.etcd.transport import Json
from tests.etcd.lines import Client, serve
from tests.etcd.model import ModelServer, parts_of


@pytest.mark.parametrize(("clients", "waiters"), [(1, 20), (3, 20), (1, 200), (8, 200)])
def test_all_are_served_in_the_order_of_arrival(clients: int, waiters: int) -> None:
    """What a holder knows of its queue must never be mistaken for the whole queue."""
    served = serve(clients, waiters, grants=waiters)
    assert served.order == served.entered


def test_a_grant_costs_the_same_in_a_line_of_any_length() -> None:
    """Four of five need one request: the step that grants tells the new holder who is next."""
    short, long = serve(2, 60, grants=50), serve(2, 600, grants=50)
    assert long.order == long.entered[:50]
    assert long.requests_per_grant == short.requests_per_grant <= 1.3
    assert long.bytes_per_grant == pytest.approx(short.bytes_per_grant, rel=0.05)


def test_a_free_lock_costs_one_request_to_take_and_one_to_release() -> None:
    """A client that remembered its own use as a queue would first ask to join that queue."""
    server = ModelServer()
    client = Client(server, "s")
    client.enter(1)
    client.leave(1)
    before = server.requests
    for n in range(2, 12):
        assert isinstance(client.enter(n), c.Granted)
        client.leave(n)
    assert server.requests - before == 2 * 10


class Reversed(ModelServer):
    """Counts the keys that etcd fetches for reversed ranges: all of them, whatever the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def call(self, path: str, body: Json) -> Json:
        mvcc = self.gateway.state.mvcc
        for part in parts_of(body):
            if part.get("sort_order") == "DESCEND":
                start, stop = b64decode(part["key"]), b64decode(part["range_end"])
                self.fetched += len(mvcc.range(start, stop, mvcc.revision))
        return super().call(path, body)


def test_a_claim_that_joins_a_long_queue_does_not_make_etcd_fetch_all_of_it() -> None:
    """Otherwise 10,000 claims fetch fifty million keys, and their requests time out."""
    server = Reversed()
    holder, waiter = Client(server, "s0"), Client(server, "s1")
    assert isinstance(holder.enter(1), c.Granted)
    for n in range(1, LONG + 101):
        server.now_us += 30_000
        assert isinstance(waiter.enter(n), c.Queued)
        if n == LONG + 1:
            server.fetched = 0
    assert server.fetched < 5 * 100
