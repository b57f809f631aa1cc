"""How a session is woken: by datagrams on loopback, and by the exit of watched processes.

A wake carries a secret that is stored in the session's row. Anyone may send a datagram to a port,
but only a process that can read the database knows the secret, so a wake that carries it is as
trustworthy as a reply of the store.
"""

from __future__ import annotations

import contextlib
import os
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
from lockfast.runtimes import platform
from lockfast.stores.sqlite import processes
from lockfast.stores.waker import Waker

_DATAGRAM_MAX = 512
_WAKES_PER_LISTEN = 256
_POLL_MAX_MS = 1 << 30
"""`poll` takes an int of 32 bits; a listener that returns early is called again."""
_TOKEN_MAX = 1 << 53
_WATCHED_IDLE_MAX = 32
"""How many processes stay watched while no claim waits for them: one probably will again."""
_KNOWN = frozenset({WAKE_GRANTED, WAKE_LOOK, WAKE_WANTED, WAKE_ENDED, WAKE_EVENTS})


ALL_SESSIONS = ""
"""The session of a server's listener, which receives wakes for every session with its inbox."""


class WakeSender:
    """Sends wakes to other processes. If one is lost, the next keep-alive finds the grant."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def tell(self, wake: Wake) -> None:
        address, _, secret = wake.inbox.partition("#")
        port, _, namespace = address.partition("@")
        if not port or namespace != processes.network_namespace():
            return
        message = f"{secret} {wake.session} {wake.n} {wake.what} {wake.token}".encode()
        # The step is committed, so an invalid inbox in another client's row must not raise here.
        with contextlib.suppress(OSError, ValueError, OverflowError):
            self._socket.sendto(message, ("127.0.0.1", int(port)))

    def close(self) -> None:
        self._socket.close()


class SqliteWakeListener:
    """One session's socket, and the processes that it watches."""

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
        self._secret = os.urandom(8).hex()
        port = self._socket.getsockname()[1]
        self.inbox = f"{port}@{processes.network_namespace()}#{self._secret}"
        self.process = processes.identity() if death_watch else ""
        self._waker = Waker()
        # Not epoll: gevent removes it when it patches `select`.
        self._poll = platform.poll()
        self._poll.register(self._socket.fileno(), platform.POLLIN)
        self._poll.register(self._waker.fileno(), platform.POLLIN)
        # Re-entrant: a signal handler may inspect a lease at any point.
        self._mutex = threading.RLock()
        self._watched: dict[str, _Watched] = {}
        self._by_descriptor: dict[int, str] = {}
        self._processes_of: dict[int, list[str]] = {}
        self._unopened: deque[str] = deque()
        self._deaths: deque[Wake] = deque()
        self._closed = False

    # ── wakes ──────────────────────────────────────────────────────────────────────

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        self._open_descriptors()
        if timeout_ms is not None:
            timeout_ms = min(timeout_ms, _POLL_MAX_MS)
        ready = self._poll.poll(0 if self._deaths else timeout_ms)
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

    def _read_datagrams(self) -> None:
        for _ in range(_WAKES_PER_LISTEN):
            try:
                message = self._socket.recv(_DATAGRAM_MAX)
            except (BlockingIOError, ConnectionError):
                return
            with contextlib.suppress(ValueError):
                secret, session, n, what, token = message.decode().split(" ")
                if secret != self._secret or what not in _KNOWN:
                    continue
                if self._session not in (session, ALL_SESSIONS):
                    continue
                if 0 <= int(token) <= _TOKEN_MAX:
                    self._deliver(Wake(self.inbox, session, int(n), what, int(token)))

    def interrupt(self) -> None:
        self._waker.interrupt()

    # ── deaths ───────────────────────────────────────────────────────────────────────
    # Callers name the processes; only the listening thread opens and closes descriptors. A
    # caller that is interrupted (Ctrl-C) would leak one, and a descriptor that is closed while
    # the listener polls it could be reused for another process.

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
                    self._poll.register(watched.descriptor, platform.POLLIN)
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
            # The store names a bounded number of claims ahead: read again for the next ones.
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
        self._socket.close()
        self._waker.close()
        self._on_close(self.inbox)


class _Watched:
    __slots__ = ("descriptor", "sessions_of")

    def __init__(self) -> None:
        self.descriptor: int | None = None
        """None until it is opened, or if it cannot be opened."""
        self.sessions_of: dict[int, list[str]] = {}
