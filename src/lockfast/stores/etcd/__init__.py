"""The etcd store."""

from __future__ import annotations

from math import ceil

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.gateway import Cluster, Gateway
from lockfast.stores.etcd.network import HttpNetwork
from lockfast.stores.etcd.owned import ARRIVAL_BITS, OwnSessions
from lockfast.stores.etcd.steps import SEVERAL_MAX, Context
from lockfast.stores.etcd.transport import Network
from lockfast.stores.etcd.wake_listener import EtcdWakeListener
from lockfast.stores.etcd.wire import EtcdWire


def lease_seconds(span_ms: int) -> int:
    """The TTL of a lease that lasts at least this long; etcd counts in whole seconds."""
    return max(1, ceil(span_ms / 1000))


class EtcdStore:
    """A client's way to a cluster."""

    capabilities = Capabilities(several=SEVERAL_MAX)

    def __init__(self, address: Address, network: Network | None = None) -> None:
        self.label = address.label
        self.network = network or HttpNetwork(address)
        self.cluster = Cluster(address, self.network)
        own = OwnSessions(self.network.mutex(), self.network.random_bits(ARRIVAL_BITS))
        self.context = Context(own, lease_seconds)
        self._wires: set[EtcdWire] = set()

    def caller_wire(self) -> Wire:
        return self._wire(Gateway(self.cluster, self.network.caller_transport(), together=True))

    def keeper_wire(self) -> Wire:
        return self._wire(Gateway(self.cluster, self.network.keeper_transport()))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        gateway = Gateway(self.cluster, self.network.keeper_transport())
        return EtcdWakeListener(gateway, self.context, self.context.own.begin(session), deliver)

    def close(self) -> None:
        for wire in list(self._wires):
            wire.close()

    def _wire(self, gateway: Gateway) -> EtcdWire:
        wire = EtcdWire(gateway, self.context, self._wires.discard)
        self._wires.add(wire)
        return wire
