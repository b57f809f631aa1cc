"""A process that uses the embedded store: the shipped code, with its machine's parts replaced.

For the length of each call into the store, the functions that ask the machine (clocks, identity
of processes, datagrams, the SQLite library's disk) answer for the simulated process. A call
takes no virtual time, except for what it sleeps at the gate. It can be killed at any write, and
stopped there: then it stays in the middle of its transaction, on a thread of its own, with the
gate and SQLite's lock held, until it is resumed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import apsw

from lockfast.sim.runtime import Crashed, Host
from lockfast.sim.sqlite import disk as simulated_disk
from lockfast.sim.sqlite.disk import Disk, Killed
from lockfast.stores.sqlite import driver, gate, processes, rows
from lockfast.stores.sqlite import file as file_module
from lockfast.stores.sqlite.driver import Driver
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.wake_listener import WakeSender

if TYPE_CHECKING:
    from lockfast.sim.sqlite.service import Machine

T = TypeVar("T")

NAMESPACE: Final = "1"
SLEEP_S: Final = 0.02
"""The minimum sleep at the gate: polling more often changes nothing."""
STOPPED_S: Final = 30
"""No step takes this long; a test that waits longer has hung."""


class SimTime:
    """The module `time` of a simulated process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.slept_s = 0.0
        """Time slept in this call."""

    def monotonic(self) -> float:
        return self._host.clock.local_us() / 1e6 + self.slept_s

    def time_ns(self) -> int:
        return self._host.clock.wall_us() * 1000

    def sleep(self, seconds: float) -> None:
        self.slept_s += max(seconds, SLEEP_S)


class _Sender(WakeSender):
    """The shipped sender, over the machine's loopback interface."""

    def __init__(self, process: Process) -> None:
        self._socket: Any = SimpleNamespace(sendto=process.send_datagram, close=lambda: None)


class Process:
    """One process of the machine, from start to end."""

    def __init__(self, machine: Machine, host: Host, pid: int) -> None:
        self.machine = machine
        self.host = host
        self.disk: Disk = machine.disk
        self.pid = pid
        self.start_ticks = str(host.process())
        self.identity = f"{machine.boot}:{NAMESPACE}:{pid}:{self.start_ticks}"
        self.dead = False
        self.kill_at: int | None = None
        """The write, counted from now, in which it is killed,"""
        self.stop_at: int | None = None
        """or before which it is stopped."""
        self.stopped: Stopped | None = None
        self.time = SimTime(host)
        self._files: dict[str, SqliteFile] = {}
        self._driver = Driver(
            "apsw", (apsw.Error,), simulated_disk.connect, lambda e: getattr(e, "extendedresult", 0)
        )
        self._replacements: list[tuple[Any, str, Any]] = [
            (file_module, "now_ms", host.now_ms),
            (file_module, "time", self.time),
            (file_module, "WakeSender", lambda: _Sender(self)),
            (file_module, "_open_files", self._files),
            (file_module, "_open_files_mutex", threading.Lock()),
            (gate, "time", self.time),
            (gate, "_listed", lambda directory: []),
            (driver, "load", lambda name: self._driver),
            (rows, "HOT_MAX", machine.hot_max),
            (processes, "boot_id", lambda: machine.boot),
            (processes, "_namespace", lambda which, pid: NAMESPACE),
            (processes, "identity", lambda: self.identity),
            (processes, "open_pidfd", self._watch),
            (processes, "_stat", machine.stat),
            (processes, "os", SimpleNamespace(kill=machine.signal, getpid=lambda: pid)),
        ]
        """The functions through which the store uses its machine, and their replacements."""

    # ── calls into the store ─────────────────────────────────────────────────────────

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call shipped code in this process. Raises Killed if the process is killed."""
        if self.dead:
            raise Crashed(self.host.name)
        try:
            if self.stop_at is None:
                with self._acting():
                    return function(*arguments)
            call = Stopped(self, function, arguments)
            with self._acting():
                call.go_on()
        finally:
            if self.dead:
                raise Killed  # The process is dead, so no one receives the result.
        if not call.ended:
            self.stopped = call
            raise StoppedError(call)
        return call.result()  # type: ignore[no-any-return]

    def result_of(self, call: Stopped) -> Any:
        """Return the result of a call that was stopped. Raises Killed if it was killed since."""
        if self.dead:
            raise Killed
        return call.result()

    def files(self) -> list[SqliteFile]:
        """Return the databases that it has open and that can be read now."""
        if self.dead or self.stopped is not None:
            return []
        return [file for file in self._files.values() if file._connection is not None]

    @contextlib.contextmanager
    def _acting(self) -> Iterator[None]:
        self.time.slept_s = 0.0
        originals = [getattr(owner, name) for owner, name, _ in self._replacements]
        for owner, name, ours in self._replacements:
            setattr(owner, name, ours)
        before = simulated_disk.act_as(lambda: self)
        try:
            yield
        finally:
            simulated_disk.act_as(before)
            for (owner, name, _), original in zip(self._replacements, originals, strict=True):
                setattr(owner, name, original)

    def _watch(self, process: str) -> None:
        """As `open_pidfd`, for a process whose end the simulated machine reports."""
        if processes.has_ended(process):
            raise processes.Gone

    # ── what happens to it ───────────────────────────────────────────────────────────

    def before_write(self) -> float:
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                self.dead = True
                return self.machine.rng.random()
        if self.stop_at is not None:
            self.stop_at -= 1
            if self.stop_at < 0:
                self.stop_at = None
                call = Stopped.of_this_thread()
                assert call is not None
                call.stop()
        return 1.0

    def resume(self) -> None:
        """Continue where it was stopped."""
        call, self.stopped = self.stopped, None
        if call is not None:
            with self._acting():
                call.go_on()
            call.signal.set()

    def bury(self) -> None:
        """The process is dead: close its files, release its locks, write nothing."""
        self.dead = True
        if self.stopped is not None:
            self.resume()
        with self._acting():
            for file in self._files.values():
                if file._connection is not None:
                    with contextlib.suppress(apsw.Error, Killed):
                        file._connection.close(True)
                if file._presence is not None:
                    file._presence.close()
                if file._gate is not None:
                    file._gate.close()
        self._files.clear()

    def send_datagram(self, message: bytes, address: tuple[str, int]) -> None:
        if not self.dead:
            self.machine.carry(self.host, address[1], message)


class StoppedError(BaseException):
    """A call has not returned: its process was stopped during it."""

    def __init__(self, call: Stopped) -> None:
        self.call = call


class Stopped:
    """Runs a call on a separate thread, so that it can stop anywhere. One thread runs at a time."""

    def __init__(
        self, process: Process, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        self.signal = process.host.signal()
        """Set when it has ended."""
        self.ended = False
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._theirs, self._ours = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(
            target=self._run, args=(function, arguments), name="stopped", daemon=True
        )
        self._thread.stopped_call = self  # type: ignore[attr-defined]
        self._thread.start()

    @staticmethod
    def of_this_thread() -> Stopped | None:
        return getattr(threading.current_thread(), "stopped_call", None)

    def go_on(self) -> None:
        """Run until it stops or ends."""
        self._theirs.release()
        assert self._ours.acquire(timeout=STOPPED_S), "a step does not come to its end"
        if self.ended:
            self._thread.join()

    def stop(self) -> None:
        """Called on the thread itself: let the world continue without it."""
        self._ours.release()
        self._theirs.acquire()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._outcome

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._theirs.acquire()
        try:
            self._outcome = function(*arguments)
        except BaseException as error:
            self._error = error
        self.ended = True
        self._ours.release()
