"""Reads the store for the live view, on its own threads, so that keys are never slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from lockfast.api.blocking import Client, Watch
from lockfast.cli.live.model import EventTail, Snapshot
from lockfast.errors import LockfastError, StoreError, UnsupportedError, WatchGapError
from lockfast.flow.watch import KINDS

SESSIONS_EVERY_S: Final = 2.0
PAUSE_AFTER_ERROR_S: Final = 1.0


class Feed:
    """The latest snapshot and the latest events. `on_change` is called on a feed's thread."""

    def __init__(
        self, client: Client, prefix: str, every_s: float, on_change: Callable[[], None]
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._every_s = every_s
        self._on_change = on_change
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._watch: Watch | None = None
        self.snapshot = Snapshot()
        self.tail = EventTail()
        self.no_events = ""
        """Why there are no events; "" if there are."""

    def start(self) -> None:
        for job in (self._read, self._follow):
            threading.Thread(target=job, name="lockfast-top", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._watch is not None:
            self._watch.close()

    def refresh(self) -> None:
        """Read the store again soon."""
        self._wake.set()

    def _read(self) -> None:
        sessions_at = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            with_sessions = now >= sessions_at
            try:
                self.snapshot = self._take_snapshot(with_sessions)
                if with_sessions:
                    sessions_at = now + SESSIONS_EVERY_S
            except StoreError as error:  # its text begins with the URL
                self.snapshot = self.snapshot._replace(trouble=error.what)
            except LockfastError as error:
                self.snapshot = self.snapshot._replace(trouble=str(error))
            self._changed()
            self._wake.wait(self._every_s)
            self._wake.clear()

    def _take_snapshot(self, with_sessions: bool) -> Snapshot:
        client = self._client
        locks = [lock for kind in KINDS for lock in client.list(self._prefix, kind=kind)]
        waited_for = any(lock.waiting_count for lock in locks)
        return self.snapshot._replace(
            locks=tuple(locks),
            sessions=tuple(client.sessions()) if with_sessions else self.snapshot.sessions,
            graph=client.wait_graph(self._prefix) if waited_for else Snapshot().graph,
            at=time.time(),
            trouble="",
        )

    def _follow(self) -> None:
        """Collect events. The store's log may have a gap, or the store may have no log."""
        while not self._stop.is_set():
            try:
                self._watch = self._client.watch(self._prefix, kind=None)
                while True:
                    try:
                        for event in self._watch:
                            self.tail.add(event)
                        return  # closed
                    except WatchGapError:
                        continue
            except UnsupportedError as error:
                self.no_events = str(error)
                return
            except LockfastError:
                self._stop.wait(PAUSE_AFTER_ERROR_S)

    def _changed(self) -> None:
        if not self._stop.is_set():
            self._on_change()
