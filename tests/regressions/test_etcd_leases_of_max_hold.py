"""A claim with a max_hold leaves no lease in etcd when it is released.

Its release deleted the key that bounds it, but not the lease of that key, which lasted for the
whole max_hold: a lock that is taken ten times a second with a max_hold of an hour kept 36,000
leases in etcd. So did each attempt to enter that met a conflict.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.stores.etcd.requests import GRANT
from lockfast.stores.etcd.transport import Json
from tests.etcd.lines import PLACES, Client
from tests.etcd.model import ModelServer

HOUR_MS = 3_600_000
ROUNDS = 10


def leases(server: ModelServer) -> int:
    return len(server.gateway.state.leases)


def enter(client: Client, n: int, max_hold_ms: int = HOUR_MS) -> c.Reply:
    return client.send(c.Enter(client.session, n, PLACES, max_hold_ms=max_hold_ms))


def test_a_released_claim_leaves_no_lease() -> None:
    server = ModelServer()
    client = Client(server, "s0")
    before = leases(server)
    for n in range(1, ROUNDS):
        assert isinstance(enter(client, n), c.Granted)
        client.leave(n)
    assert leases(server) == before


def test_nor_does_one_that_was_handed_the_lock() -> None:
    server = ModelServer()
    first, second = Client(server, "s0"), Client(server, "s1")
    before = leases(server)
    for n in range(1, ROUNDS):
        assert isinstance(enter(first, n), c.Granted)
        assert isinstance(enter(second, n), c.Queued)
        first.leave(n)
        second.leave(n)
    assert leases(server) == before


class BusyServer(ModelServer):
    """Another client takes the lock just before a lease is granted."""

    def __init__(self) -> None:
        super().__init__()
        self.other: Client | None = None

    def call(self, path: str, body: Json) -> Json:
        other, self.other = self.other, None
        if path == GRANT and other is not None:
            assert isinstance(other.send(c.Enter(other.session, 1, PLACES)), c.Granted)
        else:
            self.other = other
        return super().call(path, body)


def test_nor_does_an_attempt_that_met_a_conflict() -> None:
    server = BusyServer()
    client, server.other = Client(server, "s0"), Client(server, "s1")
    before = leases(server)
    assert isinstance(enter(client, 1), c.Queued)
    assert leases(server) == before


def test_a_short_lease_is_left_to_expire() -> None:
    server = ModelServer()
    client = Client(server, "s0")
    before = leases(server)
    enter(client, 1, max_hold_ms=1000)
    client.leave(1)
    assert leases(server) == before + 1
