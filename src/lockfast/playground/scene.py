"""A scene: workers, a lock and two resources; commands, and the state that the page shows."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lockfast.core.commands import Inspect, ResourceView, RevokeSession, Sessions, SessionsReply
from lockfast.core.modes import LOCK as LOCK_KIND
from lockfast.guards import MemoryGuard
from lockfast.playground import store
from lockfast.playground.drawing import timeline
from lockfast.playground.faults import RATE_MAX, RATE_MIN
from lockfast.playground.record import Record
from lockfast.playground.resources import Resource, Write
from lockfast.playground.story import Story
from lockfast.playground.worker import LOCK, Worker
from lockfast.runtimes.platform import now_ms
from lockfast.stores.memory import MemoryTable

NAMES: Final = "ABCDEFGH"
WRITES_SHOWN: Final = 5
POLL_S: Final = 0.05
"""How often to poll for changes without a notification, such as an expired lease."""

_numbers = itertools.count(1)


class Settings(NamedTuple):
    """The settings of the sliders. Each worker follows them from its next job on."""

    ttl: float = 4.0
    work: float = 1.5
    check: bool = False
    """Workers check their lease before they write."""


BOUNDS: Final = {"ttl": (0.5, 30.0), "work": (0.1, 20.0)}


class CommandError(ValueError):
    """A command that the scene does not know, or that has an invalid value."""


class Scene:
    """One playground. Its methods may be called from any thread."""

    def __init__(self, workers: int = 4) -> None:
        self.id = str(next(_numbers))
        self.table = store.scenes[self.id] = MemoryTable(now_ms)
        self.settings = Settings()
        self.record = Record(self.table)
        self.record.update()
        self.workers = {name: Worker(self, name) for name in NAMES[:workers]}
        self._make_resources()
        self.story = Story(self)
        self._commands = threading.RLock()
        self._condition = threading.Condition()
        self._version = 0

    @property
    def url(self) -> str:
        """The URL with which a server opens the lock table."""
        return f"playground://{self.id}"

    def _make_resources(self) -> None:
        self.unfenced = Resource("unfenced")
        self.fenced = Resource("fenced", MemoryGuard())

    @property
    def resources(self) -> tuple[Resource, Resource]:
        return self.unfenced, self.fenced

    # ── commands ─────────────────────────────────────────────────────────────────────

    def do(self, command: str, values: dict[str, Any]) -> None:
        """Execute a command of the page. Raises CommandError."""
        handler = _COMMANDS.get(command)
        if handler is None:
            raise CommandError(f"there is no command {command!r}")
        with self._commands:
            handler(self, dict(values))
        self.changed()

    def _worker(self, values: dict[str, Any]) -> Worker:
        worker = self.workers.get(_taken(values, "worker", str))
        if worker is None:
            raise CommandError(f"worker has to be one of {', '.join(self.workers)}")
        return worker

    def _on_worker(self, act: Callable[[Worker], None], values: dict[str, Any]) -> None:
        worker = self._worker(values)
        _refuse_rest(values)
        self.story.stop()
        act(worker)

    def _set_clock(self, values: dict[str, Any]) -> None:
        worker, rate = self._worker(values), _taken(values, "rate", float)
        _refuse_rest(values)
        if not RATE_MIN <= rate <= RATE_MAX:
            raise CommandError(f"rate has to be from {RATE_MIN:g} to {RATE_MAX:g}")
        worker.set_rate(rate)

    def _set(self, values: dict[str, Any]) -> None:
        settings = self.settings
        if "check" in values:
            settings = settings._replace(check=_taken(values, "check", bool))
        for name, (least, most) in BOUNDS.items():
            if name in values:
                value = _taken(values, name, float)
                if not least <= value <= most:
                    raise CommandError(f"{name} has to be from {least:g} to {most:g} seconds")
                settings = settings._replace(**{name: value})
        _refuse_rest(values)
        self.settings = settings

    def _start_all(self, values: dict[str, Any]) -> None:
        _refuse_rest(values)
        self.story.stop()
        for worker in self.workers.values():
            worker.start()

    def _reset(self, values: dict[str, Any]) -> None:
        _refuse_rest(values)
        self.story.stop()
        self.clear()

    def _play(self, values: dict[str, Any]) -> None:
        step_by_step = _taken(values, "step_by_step", bool) if values else False
        _refuse_rest(values)
        self.story.stop()
        self.story.play(step_by_step)

    def _next(self, values: dict[str, Any]) -> None:
        _refuse_rest(values)
        self.story.next()

    def clear(self) -> None:
        """Crash all workers, free the lock, and replace the resources by empty ones."""
        for worker in self.workers.values():
            worker.crash()
        reply = self.table.apply(Sessions())
        assert isinstance(reply, SessionsReply)
        for session in reply.sessions:
            if session.owner in self.workers and not session.ended:
                self.table.apply(RevokeSession(session.session, "playground", "the scene is reset"))
        self.record.clear()
        self._make_resources()
        for worker in self.workers.values():
            worker.forget()
        self.changed()

    def close(self) -> None:
        """Crash all workers and remove the scene."""
        self.story.stop()
        for worker in self.workers.values():
            worker.crash()
        store.scenes.pop(self.id, None)

    # ── waiting for changes ──────────────────────────────────────────────────────────

    def changed(self) -> None:
        """Increment the version and notify the threads that wait for a change."""
        with self._condition:
            self._version += 1
            self._condition.notify_all()

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a condition holds; return False on timeout."""
        until_s = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while not is_so():
                left_s = POLL_S if until_s is None else min(POLL_S, until_s - time.monotonic())
                if left_s <= 0:
                    return False
                self._condition.wait(left_s)
        return True

    def wait_for_change(self, version: int, timeout: float) -> int:
        """Wait for a version of the state other than `version`, or a timeout; return it."""
        self.wait_for(lambda: self._version != version, timeout)
        return self._version

    # ── what the page shows ──────────────────────────────────────────────────────────

    @property
    def is_idle(self) -> bool:
        """Nothing changes before the next command."""
        return not any(worker.alive for worker in self.workers.values())

    def state(self) -> dict[str, Any]:
        """Return everything that the page shows."""
        view = self.table.apply(Inspect(LOCK_KIND, LOCK, len(NAMES)))
        assert isinstance(view, ResourceView)
        number_of = self.record.number_of
        return {
            "lock": LOCK,
            "settings": self.settings._asdict(),
            "holders": [
                {"worker": one.owner, "token": number_of(one.token), "left_ms": one.left_ms}
                for one in view.holders
            ],
            "waiting": [one.owner for one in view.waiting],
            "workers": [worker.state() for worker in self.workers.values()],
            "resources": [self._resource_state(resource) for resource in self.resources],
            "story": self.story.state(),
            "timeline": timeline(self.record, tuple(self.workers), self.resources),
        }

    def _resource_state(self, resource: Resource) -> dict[str, Any]:
        shown = list(resource.writes)[-WRITES_SHOWN:]
        return {
            "name": resource.name,
            "fenced": resource.fenced,
            "balance": resource.balance,
            "jobs": resource.jobs,
            "refused": resource.refused,
            "corrupted": resource.corrupted,
            "newest": self.record.number_of(resource.newest) if resource.newest else 0,
            "writes": [self._write_state(write) for write in reversed(shown)],
        }

    def _write_state(self, write: Write) -> dict[str, Any]:
        return {
            **write._asdict(),
            "token": self.record.number_of(write.token),
            "corrupts": write.corrupts,
        }


def _taken(values: dict[str, Any], name: str, kind: type) -> Any:
    value = values.pop(name, None)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, float) and value != value):
        raise CommandError(f"{name} has to be a {kind.__name__}")
    return value


def _refuse_rest(values: dict[str, Any]) -> None:
    if values:
        raise CommandError(f"unknown: {', '.join(sorted(values))[:100]}")


def _pause_before_write(worker: Worker) -> None:
    worker.pause_before_write = worker.alive


_COMMANDS: Final[dict[str, Callable[[Scene, dict[str, Any]], None]]] = {
    "start": lambda scene, values: scene._on_worker(lambda worker: worker.start(), values),
    "stop": lambda scene, values: scene._on_worker(lambda worker: worker.stop(), values),
    "crash": lambda scene, values: scene._on_worker(lambda worker: worker.crash(), values),
    "pause": lambda scene, values: scene._on_worker(lambda worker: worker.pause(), values),
    "pause_before_write": lambda scene, values: scene._on_worker(_pause_before_write, values),
    "resume": lambda scene, values: scene._on_worker(lambda worker: worker.resume(), values),
    "cut_off": lambda scene, values: scene._on_worker(
        lambda worker: worker.set_cut_off(True), values
    ),
    "reconnect": lambda scene, values: scene._on_worker(
        lambda worker: worker.set_cut_off(False), values
    ),
    "clock": Scene._set_clock,
    "set": Scene._set,
    "start_all": Scene._start_all,
    "reset": Scene._reset,
    "play": Scene._play,
    "next": Scene._next,
}
