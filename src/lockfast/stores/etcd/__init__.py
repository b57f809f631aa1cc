"""The etcd store: the lock table over keys of a cluster, each command one transaction."""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.cluster import Cluster
from lockfast.stores.etcd.gateway import Transport
from lockfast.stores.etcd.journal import Journal
from lockfast.stores.etcd.shared import Shared
from lockfast.stores.etcd.sockets import BlockingTransport
from lockfast.stores.etcd.steps import SEVERAL_MAX
from lockfast.stores.etcd.wake_listener import EtcdWakeListener
from lockfast.stores.etcd.wire import EtcdWire


class EtcdStore:
    """A client's way to a cluster, for callers that block."""

    capabilities = Capabilities(several=SEVERAL_MAX)

    def __init__(self, address: Address) -> None:
        self.label = address.label
        self.cluster = Cluster(address)
        self.shared = Shared(self.cluster)
        self._journal = Journal(self.shared.keys)
        self._wires: set[EtcdWire] = set()

    def caller_wire(self) -> Wire:
        return self._wire(BlockingTransport(self.cluster.address))

    def keeper_wire(self) -> Wire:
        return self._wire(BlockingTransport(self.cluster.address))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return EtcdWakeListener(self.shared, session, deliver)

    def close(self) -> None:
        for wire in list(self._wires):
            wire.close()

    def _wire(self, transport: Transport) -> EtcdWire:
        wire = EtcdWire(self.shared, self._journal, transport, self._wires.discard)
        self._wires.add(wire)
        return wire
