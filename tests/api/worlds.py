"""Shared by tests of the API: clients of both APIs, and stores that can be observed or cut off."""

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
    """Return the URL of an unused table in memory."""
    return f"memory://api-{next(_numbers)}"


class CuttableStore(MemoryStore):
    """A memory store whose connections can be cut, and that records the commands it receives."""

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
        """Lose these commands from now on; without arguments, all of them."""
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
    """Make every URL lead to this store."""
    monkeypatch.setattr(base, "open_store", lambda *args, **kwargs: store)
