"""The Redis store for the blocking API: its wires and wake listeners."""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.wake_listener import RedisWakeListener
from lockfast.stores.redis.wire import BlockingWire
from lockfast.stores.wires import WireOwner


class RedisStore(WireOwner):
    """A client's connections to one namespace, for the blocking API."""

    capabilities = Capabilities()
    listens_for_all = True

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.label = address.label
        self.protocol = ScriptProtocol(address)

    def caller_wire(self) -> Wire:
        return self._owned(BlockingWire(self.protocol, self._wires.discard))

    def keeper_wire(self) -> Wire:
        return self._owned(BlockingWire(self.protocol, self._wires.discard))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return RedisWakeListener(self.protocol.address, session, deliver)
