"""A lock store on a host of its own, and a client's way to it over the network.

The server runs the lock table that ships. It may crash and come back with all it had, with
what it had written down (the same commands, up to some instant), or with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeAlias

from lockfast.core.commands import Blocker, Command, Reply, Wake
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import READS, Table
from lockfast.errors import LockfastError, OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Crashed, Host, SimSignal, waiting

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
        self.listeners: dict[str, SimWakeListener] = {}
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
        heir.listeners, heir.observers = self.listeners, self.observers
        return heir

    def disband(self) -> None:
        """Let go of all who listen, and of what they did."""
        self.listeners.clear()
        self.observers.clear()
        self.forget_all()

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
        network = self.network
        if network.reset and network.chance(network.reset):
            if network.on_lost is not None:
                network.on_lost(self.host, call.host)
            call.fail(self, OutcomeUnknownError(call.label, "the connection broke"))
            return
        arrive = partial(call.arrive, reply)
        if not network.carry(self.host, call.host, arrive, arrive) and network.chance(0.5):
            call.fail(None, OutcomeUnknownError(call.label, "the connection broke"))

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
            listener = self.listeners.get(wake.inbox)
            if listener is not None:
                hear = partial(listener.hear, wake)
                self.network.carry(self.host, listener.host, hear, hear)
        return reply


class Call(SimSignal):
    """One request on its way, and what is heard of it: set by the first answer."""

    __slots__ = ("command", "error", "host", "label", "reply")

    def __init__(self, host: Host, label: str, command: Command) -> None:
        self.host = self._host = host
        self.command = command
        self.label = label
        self.reply: Reply | None = None
        self.error: LockfastError | None = None
        self._is_set = False
        self._waiter = host.kernel.current

    def arrive(self, reply: Reply) -> None:
        if not self._is_set:
            self.reply = reply
            self.set()

    def fail(self, server: LockServer | None, error: LockfastError) -> None:
        """Have it end with an error: told by the server, or found out here, some time."""

        def arrive() -> None:
            if not self._is_set:
                self.error = error
                self.set()

        if server is not None:
            server.network.carry(server.host, self.host, arrive)
        else:
            kernel = self.host.kernel
            kernel.arrive(1 + kernel.random.randrange(RESET_US_MAX), self.host, arrive)


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

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return SimWakeListener(self._host, self, session)

    def close(self) -> None:
        """There is no connection."""


class _SimWire:
    def __init__(self, host: Host, network: Network, store: SimStore) -> None:
        self._host = host
        self._network = network
        self._store = store

    @waiting
    def send(self, command: Command, timeout_ms: int) -> Generator[None, None, Reply]:
        host, store = self._host, self._store
        if host.dead:
            raise Crashed(host.name)
        task, network, server = host.kernel.current, self._network, store.find()
        assert task is not None, "only a task can wait"
        call = Call(host, store.label, command)
        again = partial(server.receive, call, False) if network.double else None
        carried = network.carry(host, server.host, partial(server.receive, call, True), again)
        if not carried and network.chance(0.5):
            # It never arrived, and here that is known: nothing was done.
            call.fail(None, StoreUnavailableError(call.label, "the connection broke"))
        # As `call.wait` does, without another generator below this one.
        task.wake_after(timeout_ms * MS, host.clock)
        try:
            yield
        finally:
            call._waiter = None
        reply = call.reply
        if reply is not None:
            if store.on_reply is not None:
                store.on_reply(command, reply)
            return reply
        raise call.error or OutcomeUnknownError(call.label, f"no answer within {timeout_ms} ms")

    def close(self) -> None:
        """There is no connection."""


class SimWakeListener:
    """Wakes arrive as messages of their own: late, twice, or not at all."""

    process = ""

    def __init__(self, host: Host, store: SimStore, session: str) -> None:
        self.host = host
        self.inbox = session
        self._store = store
        self._signal = host.signal()
        self._wakes: list[Wake] = []
        store.find().listeners[session] = self

    def hear(self, wake: Wake) -> None:
        self._wakes.append(wake)
        self._signal.set()

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        signal = self._signal
        if not signal.is_set() or self.host.dead:
            await signal.wait(timeout_ms)
        signal.clear()
        if not self._wakes:
            return ()
        wakes, self._wakes = self._wakes, []
        return wakes

    def interrupt(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """No machine sees another's processes."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._store.find().listeners.pop(self.inbox, None)
