"""A worker: a client that acquires the lock, works, writes to both resources, and releases."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lockfast.api.blocking import Client
from lockfast.api.blocking.lease import Lease
from lockfast.errors import LeaseLostError, StaleTokenError, StoreError
from lockfast.flow.holding import HELD
from lockfast.playground import store
from lockfast.playground.faults import Crashed, Faults, WorkerRuntime
from lockfast.playground.record import wall_ms
from lockfast.runtimes.threads import run

if TYPE_CHECKING:
    from lockfast.playground.resources import Write
    from lockfast.playground.scene import Scene

LOCK: Final = "balance"
"""The name of the lock that all workers use."""
REST_S: Final = 0.5
SENDING_S: Final = 0.4
"""How long a write is in flight: a pause that begins now comes after every check."""
CONNECT_S: Final = 1.0


class Stage(StrEnum):
    """What a worker is doing."""

    STOPPED = "stopped"
    CRASHED = "crashed"
    WAITING = "waiting"
    WORKING = "working"
    WRITING = "writing"
    RESTING = "resting"


class _Stopped(Exception):
    """Raised in the thread of a worker that should stop."""


class Worker:
    """One worker. Each start gives it a new client and clears its faults."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self.name = name
        self.faults = Faults()
        self.stage = Stage.STOPPED
        self.note = ""
        """The result or error that it learned last."""
        self.pause_before_write = False
        self._client: Client | None = None
        self._lease: Lease | None = None
        self._stopping = self._check = False
        self._thread: threading.Thread | None = None
        self._runtime = WorkerRuntime(self.faults)
        self._go, self._nap = self._runtime.signal(), self._runtime.signal()

    # ── commands ─────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        return self.stage not in (Stage.STOPPED, Stage.CRASHED)

    def start(
        self, jobs: int | None = None, *, hold_back: bool = False, check: bool = False
    ) -> None:
        """Start the worker, forever or for a number of jobs.

        With `hold_back`, it does not finish its work before `let_go()`. With `check`, it checks its
        lease before it writes, regardless of the settings.
        """
        if self.alive:
            return
        self.join()
        self.faults = Faults()
        self.note = ""
        self._check = check
        self._stopping = self.pause_before_write = False
        self.stage = Stage.RESTING
        self._runtime = WorkerRuntime(self.faults)
        self._go, self._nap = self._runtime.signal(), self._runtime.signal()
        if not hold_back:
            self._go.set()
        store.workers[self._address] = self.faults
        self._thread = threading.Thread(
            target=self._live, args=(jobs,), name=f"playground-{self.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Make the worker release its lock and end. A paused worker is resumed first."""
        if not self.alive:
            return
        self._stopping = True
        self.resume()
        self.let_go()
        self._nap.set()
        client = self._client
        if client is not None:
            client.close()
        self.join()

    def let_go(self) -> None:
        """Let a worker that is held back finish its work and write."""
        self._go.set()

    def crash(self) -> None:
        """End the worker without releasing: the store keeps its lock until the TTL expires."""
        if self.alive:
            self._scene.record.ended(self.name, "paused")
            self._scene.record.began(self.name, "crashed")
            self._scene.record.ended(self.name, "crashed")
            self.faults.crash()
            self.join()

    def pause(self) -> None:
        if self.alive and not self.faults.paused:
            self.faults.pause()
            self._scene.record.began(self.name, "paused")
            self._changed()

    def resume(self) -> None:
        if self.faults.paused:
            self._scene.record.ended(self.name, "paused")
            self.faults.resume()
            self._changed()

    def set_rate(self, rate: float) -> None:
        self.faults.clock.set_rate(rate)
        self._scene.record.ended(self.name, "wrong clock")
        if rate != 1:
            self._scene.record.began(self.name, "wrong clock")
        self._changed()

    def set_cut_off(self, cut_off: bool) -> None:
        if cut_off != self.faults.cut_off:
            self.faults.cut_off = cut_off
            note = self._scene.record.began if cut_off else self._scene.record.ended
            note(self.name, "cut off")
            self._changed()

    def forget(self) -> None:
        """Reset to the state before the first start. Only for a worker that is not alive."""
        self.stage, self.note, self.faults = Stage.STOPPED, "", Faults()

    def join(self) -> None:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)

    # ── its life ─────────────────────────────────────────────────────────────────────

    @property
    def _address(self) -> str:
        return f"{self._scene.id}/{self.name}"

    def _live(self, jobs: int | None) -> None:
        url = f"playground://{self._address}"
        client = self._client = Client(url, owner=self.name, connect_timeout=CONNECT_S)
        ended = Stage.STOPPED
        try:
            while not self._stopping and jobs != 0:
                self._job(client)
                jobs = None if jobs is None else jobs - 1
                if jobs != 0:
                    self._reach(Stage.RESTING)
                    self._sleep(REST_S)
            client.close()
        except _Stopped:
            pass
        except Crashed:
            ended = Stage.CRASHED
            # End the leases before they are garbage-collected, as the keeper would a moment later.
            for session in client._core.sessions():
                session.end("the worker crashed")
        finally:
            self._lease = self._client = None
            store.workers.pop(self._address, None)
            for what in ("paused", "cut off", "wrong clock"):
                self._scene.record.ended(self.name, what)
            self._reach(ended)

    def _job(self, client: Client) -> None:
        self._reach(Stage.WAITING)
        try:
            lease = client.lock(LOCK, ttl=self._scene.settings.ttl).acquire()
            try:
                with lease:
                    self._hold(lease)
            finally:
                self._scene.record.believed_until_now(lease.token)
                self._lease = None
        except LeaseLostError:
            self._stop_if_asked()
            written = "after it had written" if self.stage is Stage.WRITING else "and did not write"
            self.note = f"learned that its lease was lost, {written}"
        except StaleTokenError:
            self.note = "was refused at the fenced balance when it began"
        except StoreError as error:
            self._stop_if_asked()
            self.note = f"cannot reach the store ({type(error).__name__})"
            self._sleep(REST_S)

    def _hold(self, lease: Lease) -> None:
        scene, token = self._scene, lease.token
        self._lease = lease
        scene.record.believed(token)
        lease.on_lost(lambda lost: scene.record.believed_until_now(token))
        balances = [(resource, resource.read(token)) for resource in scene.resources]
        self.note = ""
        self._reach(Stage.WORKING)
        self._sleep(scene.settings.work)
        run(self._go.wait(None))
        self._stop_if_asked()
        if self._check or scene.settings.check:
            lease.check()
        self._reach(Stage.WRITING)
        if self.pause_before_write:
            self.pause_before_write = False
            self.pause()
        self._sleep(SENDING_S)
        done = [
            resource.write(wall_ms(), self.name, token, balance + 1)
            for resource, balance in balances
        ]
        self.note = _said(done)
        self._changed()

    def _sleep(self, seconds: float) -> None:
        """Sleep in real time: a slow clock does not slow the work down."""
        until_ms = wall_ms() + int(seconds * 1000)
        while (left_ms := until_ms - wall_ms()) > 0:
            own_ms = max(1, int(left_ms * self.faults.clock.rate))
            self._nap = self._runtime.signal()
            run(self._nap.wait(own_ms))
            self._stop_if_asked()
        self.faults.gate()
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self._stopping:
            raise _Stopped

    def _reach(self, stage: Stage) -> None:
        self.stage = stage
        self._changed()

    def _changed(self) -> None:
        self._scene.changed()

    # ── what the page shows ──────────────────────────────────────────────────────────

    def state(self) -> dict[str, Any]:
        """Return the worker's state for the page, without making it notice anything."""
        faults = self.faults
        believes: dict[str, Any] | None = None
        lease = self._lease
        if lease is not None and self.alive:
            holding = lease._holding
            session = holding.session
            if holding.phase is HELD and session is not None:
                left_ms = session.deadline_of(holding) - faults.clock.now_ms()
                believes = {
                    "token": self._scene.record.number_of(lease.token),
                    "left_ms": max(0, round(left_ms / faults.clock.rate)),
                }
        return {
            "name": self.name,
            "stage": self.stage,
            "paused": faults.paused,
            "pause_before_write": self.pause_before_write,
            "cut_off": faults.cut_off,
            "rate": faults.clock.rate,
            "believes": believes,
            "note": self.note,
        }


def _said(done: list[Write]) -> str:
    parts = []
    for write in done:
        if write.refused:
            parts.append("refused by the guard")
        elif write.stale:
            parts.append("overwrote newer data")
    return "; ".join(parts) or "wrote to both"
