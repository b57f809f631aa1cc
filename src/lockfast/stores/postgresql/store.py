"""The PostgreSQL store for the blocking API: its wires and wake listeners."""

from __future__ import annotations

from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.wake_listener import PostgresWakeListener
from lockfast.stores.postgresql.wire import BlockingWire, Server
from lockfast.stores.wires import WireOwner


class PostgresStore(WireOwner):
    """A client's access to one server, for the blocking API."""

    capabilities = Capabilities()
    listens_for_all = True

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.label = address.label
        self.server = Server(address)

    def caller_wire(self) -> Wire:
        return self._owned(BlockingWire(self.server, self._wires.discard))

    def keeper_wire(self) -> Wire:
        return self._owned(BlockingWire(self.server, self._wires.discard))

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return PostgresWakeListener(self.server, session, deliver)
