"""A watch that its member does not confirm is opened again, at another member.

A listener took a watch for open as soon as its request was sent. If the member never answered it,
the session was woken by its keep-alives only, a third of its TTL late, until the connection broke.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockfast.core import commands as c
from lockfast.core.commands import Wake
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.transport import Json
from lockfast.stores.etcd.wake_listener import REQUEST_MS
from tests.etcd.harness import address_of
from tests.etcd.lines import PLACES, Client
from tests.etcd.model import ModelNetwork, ModelServer, ModelTransport, ModelWatcher


class TwoMembers(ModelNetwork):
    """A client's access to two members, of which the first never answers a watch."""

    def __init__(self, server: ModelServer) -> None:
        super().__init__(server)
        self.member = 0

    def keeper_transport(self) -> ModelTransport:
        return AvoidingTransport(self)

    def watcher(self) -> ModelWatcher:
        return SilentWatcher(self)


class AvoidingTransport(ModelTransport):
    def __init__(self, network: TwoMembers) -> None:
        super().__init__(network.server)
        self._network = network

    def avoid_member(self) -> None:
        self._network.member = 1


class SilentWatcher(ModelWatcher):
    def __init__(self, network: TwoMembers) -> None:
        super().__init__(network.server)
        self._network = network
        self._is_silent = False

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        await super().open(create_requests, timeout_ms, token)
        self._is_silent = self._network.member == 0

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        return [] if self._is_silent else await super().next(timeout_ms)


def test_its_claims_are_woken_through_another_member() -> None:
    server = ModelServer()
    holder = Client(server, "s0")
    store = EtcdStore(address_of("etcd://model"), TwoMembers(server))
    told: list[Wake] = []
    listener = store.wake_listener("s1", told.append)
    wire = store.caller_wire()
    run(wire.send(c.Open("s1", 60_000, "w", "", listener.inbox), 5000))
    run(listener.listen(0))
    assert isinstance(holder.enter(1), c.Granted)
    assert isinstance(run(wire.send(c.Enter("s1", 1, PLACES), 5000)), c.Queued)
    holder.leave(1)
    run(listener.listen(0))
    assert not told
    server.now_us += (REQUEST_MS + 1) * 1000
    for _ in range(3):  # notices the silence, pauses, and opens the watch again
        run(listener.listen(0))
        server.now_us += 1_000_000
    assert [(wake.n, wake.what) for wake in told] == [(1, c.WAKE_GRANTED)]
    listener.close()
    store.close()
