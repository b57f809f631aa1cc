"""The store object of both APIs."""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.lockserver.address import Address
from lockfast.stores.lockserver.network import HttpNetwork
from lockfast.stores.lockserver.transport import Network, Transport
from lockfast.stores.lockserver.wake_listener import ServerWakeListener
from lockfast.stores.lockserver.wire import ServerWire
from lockfast.stores.wires import WireOwner


class ServerStore(WireOwner):
    """A client's connections to one namespace of a server."""

    capabilities = Capabilities()
    """The capabilities of a server over a full store. The server refuses what its store cannot do.
    """

    def __init__(self, address: Address, network: Network | None = None) -> None:
        super().__init__()
        self.label = address.label
        self._address = address
        self._network = network if network is not None else HttpNetwork(address)

    def caller_wire(self) -> Wire:
        return self._wire(self._network.caller_transport())

    def keeper_wire(self) -> Wire:
        return self._wire(self._network.keeper_transport())

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        stream, now_ms = self._network.wake_stream(), self._network.now_ms
        return ServerWakeListener(self._address, stream, now_ms, session, deliver)

    def _wire(self, transport: Transport) -> Wire:
        return self._owned(ServerWire(self._address, transport, self._wires.discard))
