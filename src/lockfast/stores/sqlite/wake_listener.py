"""How a session on the SQLite store hears: a datagram on loopback, and deaths of processes."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.ports import WAKE_DIED, Deliver
from lockfast.stores.sqlite import processes
from lockfast.stores.waker import Waker

_DATAGRAM_MAX = 512
_WAKES_PER_LISTEN = 256
_WATCHED_IDLE_MAX = 32
"""As many processes stay watched though nobody waits for them now: they will again."""
_KNOWN = frozenset({WAKE_GRANTED, WAKE_LOOK, WAKE_WANTED, WAKE_ENDED, WAKE_EVENTS})


class WakeSender:
    """Sends wakes to other processes. They are hints, so nothing depends on their arrival."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def tell(self, wake: Wake) -> None:
        address, _, secret = wake.inbox.partition("#")
        port, _, namespace = address.partition("@")
        if not port or namespace != processes.network_namespace():
            return
        message = f"{secret} {wake.session} {wake.n} {wake.what} {wake.token}".encode()
        # Whatever stands in the file as somebody's inbox: the step is done, and counts.
        with contextlib.suppress(OSError, ValueError, OverflowError):
            self._socket.sendto(message, ("127.0.0.1", int(port)))

    def close(self) -> None:
        self._socket.close()


class SqliteWakeListener:
    """One session's socket, and the processes it watches over."""

    def __init__(
        self,
        session: str,
        death_watch: bool,
        deliver: Deliver,
        on_close: Callable[[str], None],
    ) -> None:
        self._session = session
        self._deliver = deliver
        self._on_close = on_close
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(("127.0.0.1", 0))
        # Anybody may write to a port, but only who can read the lock file knows the secret:
        # what comes with it is the word of a step that was committed.
        self._secret = os.urandom(8).hex()
        port = self._socket.getsockname()[1]
        self.inbox = f"{port}@{processes.network_namespace()}#{self._secret}"
        self.process = processes.identity() if death_watch else ""
        self._waker = Waker()
        self._poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)
        self._poll.register(self._waker.fileno(), select.POLLIN)
        # Re-entrant: a signal handler may look at a lease in the middle of anything.
        self._mutex = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._by_descriptor: dict[int, str] = {}
        self._processes_of: dict[int, list[str]] = {}
        self._unopened: deque[str] = deque()
        self._deaths: deque[Wake] = deque()
        self._closed = False

    # ── hearing ──────────────────────────────────────────────────────────────────────

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        self._open_descriptors()
        ready = self._wait(0 if self._deaths else timeout_ms)
        wakes: list[Wake] = []
        for descriptor, _ in ready:
            if descriptor == self._waker.fileno():
                self._waker.take()
            elif descriptor == self._socket.fileno():
                self._read_datagrams()
            else:
                self._note_death(self._by_descriptor[descriptor])
        while self._deaths:
            wakes.append(self._deaths.popleft())
        return wakes

    def _wait(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        if isinstance(self._poll, select.epoll):
            return self._poll.poll(None if timeout_ms is None else timeout_ms / 1000)
        return self._poll.poll(timeout_ms)

    def _read_datagrams(self) -> None:
        for _ in range(_WAKES_PER_LISTEN):
            try:
                message = self._socket.recv(_DATAGRAM_MAX)
            except (BlockingIOError, ConnectionError):
                return
            with contextlib.suppress(ValueError):
                secret, session, n, what, token = message.decode().split(" ")
                if secret == self._secret and session == self._session and what in _KNOWN:
                    self._deliver(Wake(self.inbox, session, int(n), what, int(token)))

    def interrupt(self) -> None:
        self._waker.interrupt()

    # ── deaths ───────────────────────────────────────────────────────────────────────
    # Callers say whom to watch; descriptors are opened and closed by the listener alone.
    # A caller may be interrupted (Ctrl-C) between any two steps and would leave one open,
    # and one closed under the listener could become another process's by its number.

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        if not blockers and n not in self._processes_of:
            return
        own = processes.identity()
        wanted: dict[str, list[str]] = {}
        for blocker in blockers:
            if blocker.process and blocker.process != own:
                wanted.setdefault(blocker.process, []).append(blocker.session)
        with self._mutex:
            if self._closed:
                return
            for process in self._processes_of.pop(n, ()):
                watched = self._watched.get(process)
                if watched is not None:
                    watched.sessions_of.pop(n, None)
            if wanted:
                self._processes_of[n] = list(wanted)
            for process, sessions in wanted.items():
                watched = self._watched.get(process)
                if watched is None:
                    watched = self._watched[process] = _Watched()
                    self._unopened.append(process)
                watched.sessions_of[n] = sessions
        if self._unopened:
            self.interrupt()

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        own = processes.identity()
        others = [one for one in blockers if one.process and one.process != own]
        return [one.session for one in others if processes.has_ended(one.process)]

    def _open_descriptors(self) -> None:
        while self._unopened:
            process = self._unopened.popleft()
            with self._mutex:
                watched = self._watched.get(process)
                if watched is None or watched.descriptor is not None:
                    continue
                try:
                    watched.descriptor = processes.open_pidfd(process)
                except processes.Gone:
                    self._note_death(process)
                    continue
                if watched.descriptor is not None:
                    self._by_descriptor[watched.descriptor] = process
                    self._poll.register(watched.descriptor, select.POLLIN)
        if len(self._watched) > _WATCHED_IDLE_MAX:
            with self._mutex:
                for process, watched in list(self._watched.items()):
                    if not watched.sessions_of:
                        self._drop(process)

    def _note_death(self, process: str) -> None:
        with self._mutex:
            watched = self._drop(process)
            dead = {session for sessions in watched.sessions_of.values() for session in sessions}
            self._deaths.extend(Wake("", session, 0, WAKE_DIED) for session in sorted(dead))
            # Not all who are ahead may have been named at once: ask who else there is.
            self._deaths.extend(
                Wake(self.inbox, self._session, n, WAKE_LOOK) for n in sorted(watched.sessions_of)
            )

    def _drop(self, process: str) -> _Watched:
        watched = self._watched.pop(process)
        if watched.descriptor is not None:
            del self._by_descriptor[watched.descriptor]
            self._poll.unregister(watched.descriptor)
            os.close(watched.descriptor)
        return watched

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            for process in list(self._watched):
                self._drop(process)
        if isinstance(self._poll, select.epoll):
            self._poll.close()
        self._socket.close()
        self._waker.close()
        self._on_close(self.inbox)


class _Watched:
    __slots__ = ("descriptor", "sessions_of")

    def __init__(self) -> None:
        self.descriptor: int | None = None
        """None until it is opened, and if it cannot be."""
        self.sessions_of: dict[int, list[str]] = {}
