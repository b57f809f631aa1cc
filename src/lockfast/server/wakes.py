"""Wakes from the store for the streams and waiting requests of this server.

On a store without a listener for all sessions, each session has a listener with its own thread. It
is closed when its session ends, or when nothing has been asked of the session for a TTL and no
stream is open: clients that died do not say so.

A store calls `deliver` on its own thread. Wakes are passed to the event loop in batches: one call
of the loop for all that have arrived since the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lockfast.core.commands import Blocker, Wake
from lockfast.errors import LockfastError
from lockfast.ports import WAKE_MISSED, Store, WakeListener
from lockfast.runtimes.threads import run

logger = logging.getLogger(__name__)

LISTEN_MS: Final = 60_000
RETRY_S: Final = 0.5
UNOPENED_S: Final = 60.0
"""How long to keep the listener of a session that was not opened here."""
SWEEP_S: Final = 1.0

Hear = Callable[[Wake], None]
MISSED: Final = Wake("", "", 0, WAKE_MISSED)


class Hearers:
    """The streams and waiting requests of each session. Used on the event loop only."""

    def __init__(self) -> None:
        self._hearers: dict[str, list[Hear]] = {}

    def __len__(self) -> int:
        """Return the number of sessions with listeners."""
        return len(self._hearers)

    @contextlib.contextmanager
    def hearing(self, session: str, hear: Hear) -> Iterator[None]:
        """Call `hear` for each wake of a session, on the event loop."""
        hearers = self._hearers.setdefault(session, [])
        hearers.append(hear)
        try:
            yield
        finally:
            hearers.remove(hear)
            if not hearers and self._hearers.get(session) is hearers:
                del self._hearers[session]

    def tell(self, wake: Wake) -> None:
        """Pass a wake on; one without a session goes to all."""
        if wake.session:
            for hear in list(self._hearers.get(wake.session, ())):
                hear(wake)
            return
        for hearers in list(self._hearers.values()):
            for hear in list(hearers):
                hear(MISSED)


class Wakes(Hearers):
    """The listeners of each session. Used on the event loop only, except for `_deliver`."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Wake] = deque()
        self._scheduled = False
        self._closed = False
        self._shared: _Listening | None = None
        self._separate: dict[str, _Listening] = {}
        self._sweep_at_s = 0.0
        if getattr(store, "listens_for_all", False):
            self._shared = _Listening(store, "", self._deliver)

    def inbox_of(self, session: str, ttl_s: float) -> str:
        """Return the inbox to open a session with."""
        listening = self._listening(session)
        listening.ttl_s = max(listening.ttl_s, ttl_s)
        return listening.listener.inbox

    def _listening(self, session: str) -> _Listening:
        if self._shared is not None:
            return self._shared
        self._sweep()
        found = self._separate.get(session)
        if found is None:
            found = self._separate[session] = _Listening(self._store, session, self._deliver)
        found.used_s = time.monotonic()
        return found

    def is_used(self, session: str) -> None:
        """Note that a client has used its session."""
        found = self._separate.get(session)
        if found is not None:
            found.used_s = time.monotonic()

    def _sweep(self) -> None:
        """Close the listeners of sessions that nobody uses."""
        now_s = time.monotonic()
        if now_s < self._sweep_at_s:
            return
        self._sweep_at_s = now_s + SWEEP_S
        for session, one in list(self._separate.items()):
            if session not in self._hearers and now_s - one.used_s > one.ttl_s:
                self.forget(session)

    @contextlib.contextmanager
    def hearing(self, session: str, hear: Hear) -> Iterator[None]:
        """Call `hear` for each wake of a session, on the event loop."""
        self._listening(session)
        with super().hearing(session, hear):
            yield

    def is_waiting(self, session: str, n: int, ahead: Sequence[Blocker]) -> None:
        """Pass on who is ahead of a claim: nobody if it does not wait. Some stores watch them."""
        if self._shared is None and session in self._separate:
            self._separate[session].listener.watch_over(n, ahead)

    def forget(self, session: str) -> None:
        """Stop listening for a session that has ended."""
        separate = self._separate.pop(session, None)
        if separate is not None:
            separate.close()

    def _deliver(self, wake: Wake) -> None:
        self._arrived.append(wake)
        if not self._scheduled:
            self._scheduled = True
            # The loop may already be closed during shutdown.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._arrived:
            self.tell(self._arrived.popleft())

    def close(self) -> None:
        self._closed = True
        for listening in (self._shared, *self._separate.values()):
            if listening is not None:
                listening.close()
        self._separate.clear()


class _Listening:
    """A wake listener of the store, and its thread."""

    def __init__(self, store: Store, session: str, deliver: Hear) -> None:
        self._session = session
        self._deliver = deliver
        self._closed = threading.Event()
        self.ttl_s = UNOPENED_S
        self.used_s = 0.0
        self.listener: WakeListener = store.wake_listener(session, deliver)
        name = f"lockfast-wakes-{session}" if session else "lockfast-wakes"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                for wake in run(self.listener.listen(LISTEN_MS)):
                    self._deliver(wake)
            except (LockfastError, OSError, ValueError) as error:
                if not self._closed.is_set():
                    logger.warning("listening for wakes failed: %s", error)
                self._closed.wait(RETRY_S)
        self.listener.close()

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError, ValueError):
            self.listener.interrupt()
