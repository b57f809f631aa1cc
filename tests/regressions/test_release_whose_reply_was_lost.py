"""A release whose reply was lost did not wake the next claim, if that was of the same client.

A step wakes claims of its own process when its reply arrives. If the reply was lost, or its caller
was interrupted, the claim that it had granted was not woken, and the repeated release found nothing
left to do: the caller that had the lock heard of it with the next keep-alive, a third of the TTL
later. Steps of other processes store a word, or ring a bell. etcd and ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.transport import Json
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper import transport as t
from tests.etcd import model as etcd
from tests.etcd.harness import address_of
from tests.zookeeper import model as zookeeper

A = (c.Place("lock", "a", "exclusive"),)
SEND_MS = 5000


class EtcdTransport(etcd.ModelTransport):
    lost = False

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        reply = await super().call(path, body, timeout_ms, token)
        if EtcdTransport.lost and reply.get("succeeded"):
            raise OutcomeUnknownError("etcd://model", "lost the connection")
        return reply


class EtcdNetwork(etcd.ModelNetwork):
    def caller_transport(self) -> EtcdTransport:
        return EtcdTransport(self.server)


class ZooKeeperNetwork(zookeeper.ModelNetwork):
    lost = False

    async def wait(self, flight: t.Flight, timeout_ms: int) -> Sequence[t.Answer]:
        answers = await super().wait(flight, timeout_ms)
        if ZooKeeperNetwork.lost:
            raise OutcomeUnknownError("zookeeper://model", "lost the connection")
        return answers


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_the_next_claim_is_looked_at(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = (
        EtcdStore(address_of("etcd://model"), EtcdNetwork())
        if kind == "etcd"
        else ZooKeeperStore("zookeeper://model", "/lockfast/default", ZooKeeperNetwork())
    )
    wire, told = store.caller_wire(), list[c.Wake]()
    listener = store.wake_listener("s", told.append)
    run(wire.send(c.Open("s", 60_000, "owner", "", listener.inbox), SEND_MS))
    run(listener.listen(0))
    assert isinstance(run(wire.send(c.Enter("s", 1, A), SEND_MS)), c.Granted)
    assert isinstance(run(wire.send(c.Enter("s", 2, A), SEND_MS)), c.Queued)
    lossy = EtcdTransport if kind == "etcd" else ZooKeeperNetwork
    monkeypatch.setattr(lossy, "lost", True)
    with pytest.raises(OutcomeUnknownError):
        run(wire.send(c.Leave("s", 1, A), SEND_MS))
    monkeypatch.setattr(lossy, "lost", False)
    told += run(listener.listen(0))
    reply = run(wire.send(c.Leave("s", 1, A), SEND_MS))

    assert isinstance(reply, c.Done)
    told += run(listener.listen(0))
    assert (2, c.WAKE_LOOK) in [(wake.n, wake.what) for wake in told]
    assert isinstance(run(wire.send(c.Look("s", 2), SEND_MS)), c.Granted)
    listener.close()
    store.close()
