"""A lock server on its own host, and a client's connection to it over the simulated network.

The server runs the shipped lock table. It may crash and restart with all its state, with what it
had persisted (the same commands, up to some instant), or with none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeAlias

from lockfast.core.commands import READS, Blocker, Command, Reply, Wake
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.errors import LockfastError, OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import Capabilities, Deliver, WakeListener, Wire
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Crashed, Host, SimSignal, waiting

Observe: TypeAlias = Callable[[Command, Reply, int, int], None]

RESET_US_MAX = 40 * MS
"""The maximum time in which a broken connection is noticed, if it is noticed at all."""


class LockServer:
    """The lock table behind the network."""

    def __init__(self, host: Host, network: Network, *, lagging: bool = False) -> None:
        self.host = host
        self.network = network
        self.table = Table(MemoryRows())
        self.down = False
        self.slow_us = 0
        """The time each command takes, one after another."""
        self.observers: list[Observe] = []
        self.commands = 0
        self.listeners: dict[str, SimWakeListener] = {}
        self._free_at = 0
        self._log: list[tuple[Command, int, int]] | None = [] if lagging else None
        """Every command since `_base` that changed something, if the server may lose some of them.
        """
        self._base = MemoryRows()
        self._synced = 0
        """The length of the persisted part of the log."""

    # ── what happens to it ───────────────────────────────────────────────────────────

    def crash(self) -> None:
        """Stop answering until restarted."""
        self.down = True

    def start(self) -> None:
        self.down = False

    def forget_all(self) -> None:
        """Restart empty, like a store that keeps its state in memory only."""
        self._begin_with(MemoryRows())

    def sync(self) -> None:
        """Persist everything, so that a later crash loses little."""
        assert self._log is not None, "it writes nothing down"
        self._synced = len(self._log)

    def forget_unsynced(self) -> int:
        """Restart from what was persisted; return how many commands are lost."""
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
        """Return a server on another host that continues from what it has replicated."""
        self.crash()
        self.forget_unsynced()
        heir = LockServer(host, self.network, lagging=True)
        heir._begin_with(self._base)
        heir.listeners, heir.observers = self.listeners, self.observers
        return heir

    def disband(self) -> None:
        """Disconnect all listeners, and discard the log."""
        self.listeners.clear()
        self.observers.clear()
        self.forget_all()

    # ── serving ──────────────────────────────────────────────────────────────────────

    def receive(self, call: Call, first: bool) -> None:
        """Handle a request that has arrived."""
        if self.down:
            # The kernel refuses the connection. Only the first copy can tell that nothing was done:
            # the other copy may have been served before.
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
        """Execute one command and wake the sessions that it concerns."""
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
    """One request in flight, and its outcome: the first answer counts."""

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
        """End it with an error after a while: reported by the server, or noticed here."""

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
    """A client's connection to a lock server; `find` returns the server for each request."""

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
        """There is no connection to close."""


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
            # It never arrived, and the client knows that nothing was done.
            call.fail(None, StoreUnavailableError(call.label, "the connection broke"))
        # The same as `call.wait`, without a further generator below this one.
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
        """There is no connection to close."""


class SimWakeListener:
    """Receives wakes as separate messages: late, twice, or not at all."""

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
        """No machine sees the processes of another."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._store.find().listeners.pop(self.inbox, None)
