"""Worlds of the embedded store: processes of one machine that share a database on its disk.

Clients are processes here, so they share the machine's clock, die together when the power is cut,
and send each other datagrams. There is no server, and no network between them and the store.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from lockfast.core.commands import READS, Command, Reply, Wake
from lockfast.core.rows import session_key
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.ports import Capabilities, Deliver, Store, WakeListener, Wire
from lockfast.sim.runtime import MS, Clock, Crashed, Host
from lockfast.sim.services import ObservedStore, OnReply, Step
from lockfast.sim.sqlite.disk import Disk, Killed
from lockfast.sim.sqlite.process import NAMESPACE, Process, StoppedError
from lockfast.stores.sqlite.file import OPEN_S, SqliteFile, open_file
from lockfast.stores.sqlite.wake_listener import SqliteWakeListener

if TYPE_CHECKING:
    from lockfast.sim.world import World

STEP_US: Final = (30, 300)
"""The time of a step, without waiting for the gate."""
GATE_MS: Final = 5
"""How often a waiting process tries the gate while another is stopped inside."""
SMALL_HOT: Final = (0, 200, 600, 1500, 7500)
"""The capacity of the hot row: small, so that rows are spilled often."""
UPTIME_US: Final = 3_600_000_000
"""How long the machine has been running when a world begins,"""
BOOT_US: Final = 1_000_000
"""and when processes can be restarted after a power cut, by its own clock."""
MEMORY: Final = "/dev/shm"


class Machine:
    """A machine with a disk, a clock, processes and a loopback interface."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.host = world.host("store")
        self.host.clock = Clock(self.host.kernel, UPTIME_US)
        self.rng = random.Random(f"{world.seed} disk")
        self.hot_max = self.rng.choice(SMALL_HOT)
        self.disk = Disk()
        self.each_us = 0
        self._directory = tempfile.TemporaryDirectory(
            prefix="lockfast-sim-", dir=MEMORY if os.path.isdir(MEMORY) else None
        )
        self.path = os.path.join(self._directory.name, "locks.db")
        self.processes: dict[Host, Process] = {}
        self.ports: dict[int, SimSqliteWakeListener] = {}
        self._boots = 1
        self._last_port = 0

    @property
    def boot(self) -> str:
        return f"boot-{self._boots}"

    def process_of(self, host: Host) -> Process:
        found = self.processes.get(host)
        if found is None:
            host.clock = self.host.clock
            pid = 100 + list(self.world.hosts).index(host.name)
            found = self.processes[host] = Process(self, host, pid)
        return found

    # ── what processes ask ───────────────────────────────────────────────────────────

    def signal(self, pid: int, number: int) -> None:
        """As `os.kill` without a signal. Raises ProcessLookupError if there is no such process."""
        if all(process.pid != pid for process in self.processes.values()):
            raise ProcessLookupError(pid)

    def stat(self, pid: int) -> list[str]:
        """As /proc/PID/stat, from the state on."""
        for process in self.processes.values():
            if process.pid == pid:
                state = "T" if process.host.paused else "S"
                return [state, *["0"] * 16, "2", "0", process.start_ticks]
        raise FileNotFoundError(pid)

    def take_port(self, listener: SimSqliteWakeListener) -> int:
        self._last_port += 1
        self.ports[self._last_port] = listener
        return self._last_port

    def carry(self, source: Host, port: int, message: bytes) -> None:
        listener = self.ports.get(port)
        if listener is not None:
            self.world.network.carry(source, listener.host, partial(listener.hear, message))

    def someone_is_stopped(self) -> bool:
        return any(process.stopped is not None for process in self.processes.values())

    # ── what happens to it ───────────────────────────────────────────────────────────

    def end(self, host: Host) -> None:
        """Report the end of a process to those that watch it."""
        process = self.processes.pop(host, None)
        if process is None:
            return
        process.bury()
        for port, listener in list(self.ports.items()):
            if listener.host is host:
                del self.ports[port]
            else:
                listener.hear_of_end(process.identity)

    def cut_power(self) -> None:
        """Boot again with what is left on the disk, after all processes have ended."""
        assert not self.processes
        self.disk.cut_power(self.rng)
        self._boots += 1
        self.host.clock = Clock(self.host.kernel, BOOT_US, self.host.clock.wall_us())

    def disband(self) -> None:
        for host in list(self.processes):
            self.end(host)
        self.ports.clear()
        self._directory.cleanup()


class SqliteService:
    """The embedded store of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.machine = Machine(world)
        self.hosts = [self.machine.host]
        self.steps: list[Step] = []

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        def replied(command: Command, reply: Reply) -> None:
            self.steps.append((self._world.kernel.now, command, reply))
            on_reply(command, reply)

        return ObservedStore(SimSqliteStore(self.machine, host), on_send, replied)

    def crash(self) -> None:
        raise AssertionError("there is no server")

    def start(self) -> None:
        """There is no server to stop."""

    def slow_down(self, each_us: int) -> None:
        self.machine.each_us = each_us

    def heal(self) -> None:
        self.machine.each_us = 0
        self.machine.disk.full = False

    def session_ends_us(self, session: str) -> int | None:
        for process in self.machine.processes.values():
            for file in process.files():
                row = process.call(_read_row, file, session_key(session))
                if row is None or row.ended:
                    return None
                return self.machine.host.clock.tick_when(row.deadline_ms * MS)
        return None

    def client_died(self, host: Host) -> None:
        self.machine.end(host)

    def disband(self) -> None:
        self.machine.disband()


def _read_row(file: SqliteFile, key: str) -> Any:
    with file.transaction("BEGIN"):
        file._rows.look()
        return file._rows.get(key)


class SimSqliteStore:
    """The store of a client, opened by its first command."""

    capabilities = Capabilities(death_watch=True)

    def __init__(self, machine: Machine, host: Host) -> None:
        self.label = f"sqlite://{machine.path}"
        self._machine = machine
        self._host = host
        self._process = machine.process_of(host)
        self._file: SqliteFile | None = None
        self._listeners: list[SimSqliteWakeListener] = []

    def caller_wire(self) -> Wire:
        return SimSqliteWire(self)

    def keeper_wire(self) -> Wire:
        return SimSqliteWire(self)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        listener = SimSqliteWakeListener(self._process, session, deliver, self._detach)
        self._listeners.append(listener)
        if self._file is not None:
            self._file.attach(listener.inbox, deliver)
        return listener

    def _detach(self, inbox: str) -> None:
        if self._file is not None:
            self._file.detach(inbox)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        host, process = self._host, self._process
        least, most = STEP_US
        draw = host.random()
        await host.sleep((least + draw * (most - least) + self._machine.each_us) / MS)
        if type(command) not in READS or self._file is None:
            opening_ms = int(OPEN_S * 1000) if self._file is None else timeout_ms
            timeout_ms -= opening_ms - await self._wait_at_gate(opening_ms)
        try:
            try:
                reply = process.call(self._apply, command, max(0, timeout_ms))
            except StoppedError as stopped:
                reply = await self._wait_stopped(stopped)
        except Killed:
            await self._die()
        except StoreError as error:
            self._note(error)
            # The sleep at the gate was already accounted for.
            await host.sleep(min(process.time.slept_s * 1000, GATE_MS))
            raise
        except (AssertionError, LookupError, ValueError) as error:
            # The table cannot interpret its rows.
            self._machine.world.problem("consistent", f"{type(command).__name__}: {error!r}")
            raise StoreUnavailableError(self.label, "its rows contradict each other") from None
        await host.sleep(draw * least / MS)
        return reply

    def _apply(self, command: Command, timeout_ms: int) -> Reply:
        """In the process: open the database if necessary, and execute the command."""
        if self._file is None:
            self._file = open_file(Path(self._machine.path), "apsw")
            for listener in self._listeners:
                self._file.attach(listener.inbox, listener._deliver)
        return self._file.apply(command, timeout_ms)

    async def _wait_at_gate(self, timeout_ms: int) -> int:
        """Wait while another process is stopped inside the gate; return the time that is left."""
        while self._machine.someone_is_stopped() and timeout_ms > GATE_MS:
            await self._host.sleep(GATE_MS)
            timeout_ms -= GATE_MS
        return timeout_ms

    async def _wait_stopped(self, stopped: StoppedError) -> Reply:
        self._machine.world.note_fault("stopped_in_step", self._host.name)
        self._host.pause()
        await stopped.call.signal.wait(None)
        try:
            reply: Reply = self._process.result_of(stopped.call)
        except StoreError as error:
            self._note(error)
            raise
        return reply

    async def _die(self) -> None:
        self._kill_soon()
        await self._host.signal().wait(None)
        raise Crashed(self._host.name)

    def _kill_soon(self) -> None:
        """Call back at this instant, but not from within one of its own tasks."""
        world, process = self._machine.world, self._process
        client = next(client for client in world.clients if client.host is self._host)

        def kill() -> None:
            # Whoever ended a fault in this instant may have started its successor.
            if self._machine.processes.get(client.host) is process:
                world.kill(client)

        world.kernel.soon(kill)

    def _note(self, error: StoreError) -> None:
        if not isinstance(error, StoreUnavailableError | OutcomeUnknownError):
            self._machine.world.problem("readable", str(error))

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None and not self._process.dead:
            self._process.stop_at = None  # Only steps are stopped.
            try:
                self._process.call(file.close)
            except Killed:
                self._kill_soon()


class SimSqliteWire:
    def __init__(self, store: SimSqliteStore) -> None:
        self.send = store.send

    def close(self) -> None:
        """Nothing to close: the file belongs to the store."""


class SimSqliteWakeListener(SqliteWakeListener):
    """The shipped checks of datagrams and deaths, without descriptors."""

    def __init__(
        self, process: Process, session: str, deliver: Deliver, on_close: Callable[[str], None]
    ) -> None:
        self.host = process.host
        self._owner = process
        self._session = session
        self._deliver = deliver
        self._on_close = on_close
        self._secret = f"{self.host.chance().getrandbits(64):016x}"
        self._port = process.machine.take_port(self)
        self.inbox = f"{self._port}@{NAMESPACE}#{self._secret}"
        self.process = process.identity
        self._mutex = threading.RLock()
        self._watched = {}
        self._by_descriptor = {}
        self._processes_of = {}
        self._unopened = deque()
        self._deaths = deque()
        self._closed = False
        self._messages: deque[bytes] = deque()
        self._ended: list[str] = []
        self._signal = self.host.signal()
        self._socket: Any = SimpleNamespace(recv=self._receive)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        self._owner.call(self._open_descriptors)
        if not self._deaths and (not self._signal.is_set() or self.host.dead):
            await self._signal.wait(timeout_ms)
        self._signal.clear()
        self._read_datagrams()
        ended, self._ended = self._ended, []
        for process in ended:
            if process in self._watched:
                self._note_death(process)
        deaths = list(self._deaths)
        self._deaths.clear()
        return deaths

    def _receive(self, size: int) -> bytes:
        if not self._messages:
            raise BlockingIOError
        return self._messages.popleft()

    def hear(self, message: bytes) -> None:
        self._messages.append(message)
        self._signal.set()

    def hear_of_end(self, process: str) -> None:
        self._ended.append(process)
        self._signal.set()

    def interrupt(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Any]) -> None:
        self._owner.call(super().watch_over, n, blockers)

    def dead(self, blockers: Sequence[Any]) -> Sequence[str]:
        return self._owner.call(super().dead, blockers)

    def close(self) -> None:
        self._closed = True
        self._owner.machine.ports.pop(self._port, None)
        self._on_close(self.inbox)
