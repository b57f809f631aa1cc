"""Commands to the cluster and replies back, for either face."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from lockfast.core import commands as c
from lockfast.core.commands import Command, Reply
from lockfast.stores.etcd.gateway import Gateway, Transport
from lockfast.stores.etcd.journal import Journal
from lockfast.stores.etcd.outcome import Instant, Outcome
from lockfast.stores.etcd.renewal import renew
from lockfast.stores.etcd.shared import Shared
from lockfast.stores.etcd.shortcut import shortcut
from lockfast.stores.etcd.steps import Step


class EtcdWire:
    """Each command is worked out here and carried out by one transaction of the cluster's."""

    def __init__(
        self,
        shared: Shared,
        journal: Journal,
        transport: Transport,
        on_close: Callable[[EtcdWire], None] = lambda wire: None,
    ) -> None:
        self._shared = shared
        self._journal = journal
        self.gateway = Gateway(shared.cluster, transport)
        self._on_close = on_close

    @property
    def connections(self) -> int:
        """How many were made: a new one may lead to another member."""
        return getattr(self.gateway.transport, "connections", 0)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return (await self.step(command, monotonic() + timeout_ms / 1000)).reply

    async def step(
        self, command: Command, until_s: float, instant: Instant | None = None
    ) -> Outcome:
        """As send, at an instant of our choice: for the comparison with the reference."""
        if isinstance(command, c.Events):
            return Outcome(await self._journal.read(self.gateway, command, until_s))
        if isinstance(command, c.Watch) and command.on:
            await self._journal.begin(self.gateway, until_s)
        if isinstance(command, c.Renew):
            return await renew(self.gateway, self._shared, command, until_s, instant)
        step = Step(self.gateway, self._shared, command, until_s, instant)
        return await shortcut(step) or await step.run()

    def close(self) -> None:
        self._on_close(self)
        self.gateway.transport.close()
