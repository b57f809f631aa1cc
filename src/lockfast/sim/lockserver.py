"""A lock store on a host of its own, and a client's way to it over the network.

The server runs the lock table that ships. It may crash and come back with all it had, with
what it had written down (the same commands, up to some instant), or with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from lockfast.core.commands import Blocker, Command, Reply, Wake
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import READS, Table
from lockfast.errors import LockfastError, OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import Capabilities, Deliver, Ear, Wire
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Crashed, Host, SimSignal

Observe: TypeAlias = Callable[[Command, Reply, int, int], None]

RESET_US_MAX = 40 * MS
"""A broken connection is noticed within this, if it is noticed at all."""


class LockServer:
    """The lock table behind the network."""

    def __init__(self, host: Host, network: Network, *, lagging: bool = False) -> None:
        self.host = host
        self.network = network
        self.table = Table(MemoryRows())
        self.down = False
        self.slow_us = 0
        """How long each command takes, one after the other."""
        self.observers: list[Observe] = []
        self.commands = 0
        self.ears: dict[str, SimEar] = {}
        self._free_at = 0
        self._log: list[tuple[Command, int, int]] | None = [] if lagging else None
        """All that changed something since `_base`, if it can forget a part of that."""
        self._base = MemoryRows()
        self._synced = 0
        """How much of the log is safe."""

    # ── what happens to it ───────────────────────────────────────────────────────────

    def crash(self) -> None:
        """Answer nothing until it is started again."""
        self.down = True

    def start(self) -> None:
        self.down = False

    def forget_all(self) -> None:
        """Come back empty, as a store that keeps its state in memory only."""
        self._begin_with(MemoryRows())

    def sync(self) -> None:
        """Write everything down; what is lost after this is not much."""
        assert self._log is not None, "it writes nothing down"
        self._synced = len(self._log)

    def forget_unsynced(self) -> int:
        """Go on from what is written down; returns how many commands are lost."""
        assert self._log is not None, "it writes nothing down"
        lost = len(self._log) - self._synced
        written = Table(self._base)
        for command, now_ms, wall_us in self._log[: self._synced]:
            written.apply(command, now_ms, wall_us)
        self._begin_with(self._base)
        return lost

    def _begin_with(self, rows: MemoryRows) -> None:
        self.table, self._base = Table(rows), rows.copy()
        self._synced = 0
        if self._log is not None:
            self._log = []

    def promote(self, host: Host) -> LockServer:
        """A server on another host that goes on from what it has heard of this one."""
        self.crash()
        self.forget_unsynced()
        heir = LockServer(host, self.network, lagging=True)
        heir._begin_with(self._base)
        heir.ears, heir.observers = self.ears, self.observers
        return heir

    # ── serving ──────────────────────────────────────────────────────────────────────

    def receive(self, call: Call, first: bool) -> None:
        """A request has arrived."""
        if self.down:
            # The kernel refuses the connection. Only the first copy can say that nothing
            # was done: the other may have been served before.
            if first:
                call.fail(self, StoreUnavailableError(call.label, "connection refused"))
            return
        if self.slow_us:
            now = self.network.kernel.now
            self._free_at = max(self._free_at, now) + self.slow_us
            self.network.kernel.at(self._free_at, lambda: self._serve(call))
        else:
            self._serve(call)

    def _serve(self, call: Call) -> None:
        if self.down:
            return
        reply = self.apply(call.command)
        if self.network.reset and self.network.chance(self.network.reset):
            if self.network.on_lost is not None:
                self.network.on_lost(self.host, call.host)
            call.fail(self, OutcomeUnknownError(call.label, "the connection broke"))
        else:
            call.answer(self, reply)

    def apply(self, command: Command) -> Reply:
        """Carry out one command and tell whom it concerns."""
        self.commands += 1
        now_ms, wall_us = self.host.clock.both()
        reply, wakes = self.table.apply(command, now_ms, wall_us)
        if self._log is not None and type(command) not in READS:
            self._log.append((command, now_ms, wall_us))
        for observe in self.observers:
            observe(command, reply, now_ms, wall_us)
        for wake in wakes:
            ear = self.ears.get(wake.inbox)
            if ear is not None:
                self._tell(ear, wake)
        return reply

    def _tell(self, ear: SimEar, wake: Wake) -> None:
        def hear() -> None:
            ear.hear(wake)

        self.network.carry(self.host, ear.host, hear, hear)


class Call(SimSignal):
    """One request on its way, and what is heard of it: set by the first answer."""

    __slots__ = ("_network", "command", "error", "label", "reply")

    def __init__(self, host: Host, network: Network, label: str, command: Command) -> None:
        self.command = command
        self.label = label
        self.reply: Reply | None = None
        self.error: LockfastError | None = None
        super().__init__(host)
        self._network = network

    @property
    def host(self) -> Host:
        return self._host

    def send(self, server: LockServer) -> None:
        again = partial(server.receive, self, False) if self._network.double else None
        carried = self._network.carry(
            self._host, server.host, partial(server.receive, self, True), again
        )
        if not carried and self._network.chance(0.5):
            # It never arrived, and here that is known: nothing was done.
            self.fail(None, StoreUnavailableError(self.label, "the connection broke"))

    def answer(self, server: LockServer, reply: Reply) -> None:
        arrive = partial(self._arrive, reply)
        carried = self._network.carry(server.host, self._host, arrive, arrive)
        if not carried and self._network.chance(0.5):
            self.fail(None, OutcomeUnknownError(self.label, "the connection broke"))

    def _arrive(self, reply: Reply) -> None:
        if self.reply is None and self.error is None:
            self.reply = reply
            self.set()

    def fail(self, server: LockServer | None, error: LockfastError) -> None:
        def arrive() -> None:
            if self.reply is None and self.error is None:
                self.error = error
                self.set()

        if server is not None:
            self._network.carry(server.host, self._host, arrive)
        else:
            kernel = self._network.kernel
            kernel.after(1 + kernel.random.randrange(RESET_US_MAX), lambda: self._host.call(arrive))


class SimStore:
    """A client's way to a lock server; which one, `find` says anew for each request."""

    capabilities = Capabilities()

    def __init__(
        self,
        host: Host,
        network: Network,
        find: Callable[[], LockServer],
        on_reply: Callable[[Command, Reply], None] | None = None,
    ) -> None:
        self.label = "sim://"
        self.find = find
        self.on_reply = on_reply
        self._host = host
        self._network = network

    def caller_wire(self) -> Wire:
        return _SimWire(self._host, self._network, self)

    def keeper_wire(self) -> Wire:
        return _SimWire(self._host, self._network, self)

    def ear(self, session: str, deliver: Deliver) -> Ear:
        return SimEar(self._host, self, session)

    def close(self) -> None:
        """There is no connection."""


class _SimWire:
    def __init__(self, host: Host, network: Network, store: SimStore) -> None:
        self._host = host
        self._network = network
        self._store = store

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        if self._host.dead:
            raise Crashed(self._host.name)
        call = Call(self._host, self._network, self._store.label, command)
        call.send(self._store.find())
        await call.wait(timeout_ms)
        if call.reply is not None:
            if self._store.on_reply is not None:
                self._store.on_reply(command, call.reply)
            return call.reply
        raise call.error or OutcomeUnknownError(call.label, f"no answer within {timeout_ms} ms")

    def close(self) -> None:
        """There is no connection."""


class SimEar:
    """Wakes arrive as messages of their own: late, twice, or not at all."""

    process = ""

    def __init__(self, host: Host, store: SimStore, session: str) -> None:
        self.host = host
        self.inbox = session
        self._store = store
        self._signal = host.signal()
        self._wakes: list[Wake] = []
        store.find().ears[session] = self

    def hear(self, wake: Wake) -> None:
        self._wakes.append(wake)
        self._signal.set()

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        await self._signal.wait(timeout_ms)
        self._signal.clear()
        wakes, self._wakes = self._wakes, []
        return wakes

    def poke(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """No machine sees another's processes."""

    def close(self) -> None:
        self._store.find().ears.pop(self.inbox, None)
