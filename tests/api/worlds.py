"""What tests of the API share: clients of both faces, and stores that can be watched or cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from lockfast.api import base
from lockfast.core.commands import Command, Reply
from lockfast.core.table import Limits
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Capabilities, Store, Wire
from lockfast.runtimes.platform import now_ms
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import MemoryStore, MemoryTable

_numbers = itertools.count()


def fresh_url() -> str:
    """A table in memory that nobody has used before."""
    return f"memory://api-{next(_numbers)}"


class CuttableStore(MemoryStore):
    """A memory store whose connections can be cut, and that counts what it is sent."""

    def __init__(
        self,
        limits: Limits | None = None,
        capabilities: Capabilities | None = None,
        table: MemoryTable | None = None,
    ) -> None:
        self.table = table or MemoryTable(now_ms, limits=limits)
        super().__init__(self.table, ThreadsRuntime())
        self.capabilities = capabilities or Capabilities()
        self.sent: list[Command] = []
        self.refused: list[Command] = []
        self.is_cut: Callable[[Command], bool] = lambda command: False

    def caller_wire(self) -> Wire:
        return _CuttableWire(self, super().caller_wire())

    def keeper_wire(self) -> Wire:
        return _CuttableWire(self, super().keeper_wire())

    def cut(self, *kinds: type[Any]) -> None:
        """From now on these commands do not arrive; none given: all of them."""
        self.is_cut = lambda command: not kinds or isinstance(command, kinds)

    def mend(self) -> None:
        self.is_cut = lambda command: False


class _CuttableWire:
    def __init__(self, store: CuttableStore, wire: Wire) -> None:
        self._store = store
        self._wire = wire

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._store.is_cut(command):
            self._store.refused.append(command)
            raise StoreUnavailableError("memory://", "the connection is cut")
        self._store.sent.append(command)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


def use(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Have every URL lead to this store."""
    monkeypatch.setattr(base, "open_store", lambda *args, **kwargs: store)
