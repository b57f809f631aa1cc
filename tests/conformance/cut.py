"""A simulated client whose connection can be cut or slowed, for tests about virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Wire
from lockfast.sim.runtime import Host, Kernel
from lockfast.stores.memory import MemoryStore, MemoryTable
from tests.conformance.simulator import SimClient, SimDriver


class SlowStore(MemoryStore):
    """A memory store that delays or loses what a client sends."""

    def __init__(self, table: MemoryTable, host: Host) -> None:
        super().__init__(table, host)
        self.host = host
        self.is_cut: Callable[[Command], bool] = lambda command: False
        self.delay_ms: Callable[[Command], int] = lambda command: 0
        self.sent: list[tuple[int, Command]] = []
        """Everything sent, with the instant on the host's clock; includes what was lost."""

    def caller_wire(self) -> Wire:
        return _SlowWire(self, super().caller_wire())

    def keeper_wire(self) -> Wire:
        return _SlowWire(self, super().keeper_wire())


class _SlowWire:
    def __init__(self, store: SlowStore, wire: Wire) -> None:
        self._store = store
        self._wire = wire

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        store = self._store
        store.sent.append((store.host.now_ms(), command))
        if store.is_cut(command):
            raise StoreUnavailableError("memory://", "the connection is cut")
        delay_ms = store.delay_ms(command)
        if delay_ms:
            await store.host.sleep(delay_ms)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


class SlowWorld:
    """One host, one table, and one client whose connection the test controls."""

    def __init__(self, seed: int = 1) -> None:
        self.host = Host(Kernel(seed), "host")
        self._driver = SimDriver(self.host)
        self._table = MemoryTable(self.host.now_ms, self.host.clock.wall_us, self.host.mutex())
        self.store = SlowStore(self._table, self.host)

    def client(self, **settings: Any) -> Any:
        """The client whose connection can be cut."""
        return SimClient(self.host, self.store, settings)

    def other(self, **settings: Any) -> Any:
        """Return a client that always reaches the store immediately."""
        return SimClient(self.host, MemoryStore(self._table, self.host), settings)

    def now_ms(self) -> int:
        return self.host.now_ms()

    async def sleep(self, ms: int) -> None:
        await self.host.sleep(ms)

    def start(self, job: Coroutine[Any, Any, Any]) -> Any:
        return self._driver.start(job)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self._driver.run(story)
