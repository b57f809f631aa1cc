"""Long queues on the modelled etcd: which claims are served, and what a grant costs."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.core import commands as c
from lockfast.core.commands import WAKE_GRANTED, Wake
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.etcd.model import ModelNetwork, ModelServer

PLACES = (c.Place("lock", "orders/42", "exclusive"),)


class Client:
    """One client with one session, whose keeper listens when the test asks it to."""

    def __init__(self, server: ModelServer, session: str) -> None:
        self.session = session
        self.granted: list[int] = []
        self.store = EtcdStore(address_of("etcd://model"), ModelNetwork(server))
        self.listener = self.store.wake_listener(session, self._take)
        self._wire = self.store.caller_wire()
        self.send(c.Open(session, 60_000, session, "", self.listener.inbox))
        self.listen()

    def _take(self, wake: Wake) -> None:
        if wake.what == WAKE_GRANTED:
            self.granted.append(wake.n)

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, 5000))

    def enter(self, n: int) -> c.Reply:
        return self.send(c.Enter(self.session, n, PLACES))

    def leave(self, n: int) -> None:
        assert self.send(c.Leave(self.session, n, PLACES)) == c.Done()

    def listen(self) -> None:
        run(self.listener.listen(0))


class Served(NamedTuple):
    order: list[tuple[str, int]]
    entered: list[tuple[str, int]]
    requests_per_grant: float
    bytes_per_grant: float


def serve(clients: int, waiters: int, grants: int) -> Served:
    """Queue `waiters` claims for one lock, and hand it over repeatedly."""
    server = ModelServer()
    crew = [Client(server, f"s{i}") for i in range(clients)]
    assert isinstance(crew[0].enter(1), c.Granted)
    entered = [(crew[i % clients], 2 + i) for i in range(waiters)]
    for client, n in entered:
        assert isinstance(client.enter(n), c.Queued)
    holder, order, before = (crew[0], 1), [], (server.requests, server.bytes)
    for _ in range(grants):
        holder[0].leave(holder[1])
        for client in crew:
            client.listen()
        (holder,) = [(client, client.granted.pop()) for client in crew if client.granted]
        order.append((holder[0].session, holder[1]))
    return Served(
        order,
        [(client.session, n) for client, n in entered],
        (server.requests - before[0]) / grants,
        (server.bytes - before[1]) / grants,
    )
