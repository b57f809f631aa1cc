"""How a session hears: a watch of its own keys, on a connection of its own.

Word for a session is written in the transaction it tells of, so the watch, which goes on
from the revision it has come to, misses nothing while it is interrupted. The leases of those
ahead are watched too, once a wait has lasted for a while.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Final

from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.errors import StoreError
from lockfast.ports import WAKE_DIED, Deliver
from lockfast.runtimes.threads import run
from lockfast.stores.etcd.errors import CompactedError, LeaseGoneError, TokenRefusedError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.http import ProtocolError, ReplyReader, request
from lockfast.stores.etcd.requests import TXN, WATCH
from lockfast.stores.etcd.rows import (
    FOLLOWED,
    LOG_KEY,
    decode,
    inbox_key,
    living_key,
    token_at,
    watcher_key,
)
from lockfast.stores.etcd.shared import Shared
from lockfast.stores.etcd.sockets import BlockingTransport, Connection
from lockfast.stores.etcd.watching import HEADERS, Change, Lines, requests
from lockfast.stores.waker import Waker

CONNECT_S: Final = 1.0
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0
LEASES_AFTER_S: Final = 0.5
"""Those ahead are watched over from then on: most waits are shorter, and no lease is."""
_BELIEVED: Final = frozenset({WAKE_GRANTED, WAKE_WANTED})
"""Said by the very transaction that did it, to this session alone: no need to ask again."""
_KNOWN: Final = frozenset({*_BELIEVED, WAKE_LOOK, WAKE_ENDED})


class EtcdWakeListener:
    """One session's watch. Only its keeper listens, on one thread."""

    process = ""
    """Deaths of processes cannot be seen from another machine; ends of leases can."""

    def __init__(self, shared: Shared, session: str, deliver: Deliver) -> None:
        self.inbox = inbox_key(session)
        self._shared = shared
        self._session = session
        self._deliver = deliver
        self._process = os.getpid()
        self._gateway = Gateway(shared.cluster, BlockingTransport(shared.cluster.address))
        self._connection: Connection | None = None
        self._failures = 0
        self._reader = ReplyReader()
        self._lines = Lines(shared.keys, shared.cluster.label)
        self._seen = shared.cluster.revision
        """All word up to this revision has been heard."""
        self._hears_log = False
        self._retry_at_s = 0.0
        self._retry_s = RETRY_FIRST_S
        self._mutex = threading.Lock()
        self._ahead: dict[int, frozenset[str]] = {}
        """Of each claim that waits, the sessions it waits for."""
        self._changed_s = 0.0
        self._leases: frozenset[str] = frozenset()
        """Sessions whose leases are watched."""
        self._waker = Waker()
        shared.listeners[session] = deliver

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        wakes: list[Wake] = []
        self._turn_away()
        if self._connection is None or self._leases_due() == 0:
            self._subscribe(until_s, wakes)
        if not wakes:
            self._wait(until_s)
            self._read(wakes)
        return wakes

    # ── subscribing ──────────────────────────────────────────────────────────────────

    def _wanted_leases(self) -> frozenset[str]:
        with self._mutex:
            return frozenset().union(*self._ahead.values()) - {self._session}

    def _leases_due(self) -> float | None:
        """Seconds until other leases are to be watched; None: never."""
        if self._wanted_leases() <= self._leases:
            return None
        return max(0.0, self._changed_s + LEASES_AFTER_S - monotonic())

    def _turn_away(self) -> None:
        """Leave a member that has not answered others: it may keep silent for ever."""
        connection, failures = self._connection, self._shared.cluster.failures
        if connection is not None and failures[connection.endpoint] > self._failures:
            self._lost()

    def _subscribe(self, until_s: float | None, wakes: list[Wake]) -> None:
        now_s = monotonic()
        if now_s < self._retry_at_s:
            return
        give_up_s = now_s + CONNECT_S if until_s is None else min(until_s, now_s + CONNECT_S)
        leases = self._wanted_leases() if self._leases_due() == 0 else self._leases
        begins = not self._seen
        try:
            connection = self._connect(leases, max(give_up_s, now_s + 0.05))
            self._drop()
            self._connection = connection
            if leases:
                self._look_for_dead(leases, give_up_s + CONNECT_S, wakes)
        except (StoreError, TokenRefusedError, LeaseGoneError):
            # The keeper's own requests say what is wrong, and try again in time.
            self._retry_at_s = monotonic() + self._retry_s
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)
            return
        self._leases = leases
        self._retry_s = RETRY_FIRST_S
        if begins:
            wakes += self._looks()

    def _connect(self, leases: frozenset[str], give_up_s: float) -> Connection:
        cluster, keys = self._shared.cluster, self._shared.keys
        if cluster.address.username and not cluster.token:
            # Any request has the token renewed.
            run(self._gateway.call(TXN, {}, give_up_s))
        endpoint = cluster.endpoint
        self._failures = cluster.failures[endpoint]
        try:
            connection = Connection(cluster.address, endpoint, give_up_s)
        except StoreError:
            cluster.suspect(endpoint)
            raise
        after = self._seen + 1 if self._seen else 0
        watched = [(self.inbox, after), (watcher_key(self._session), after)]
        if self._hears_log:
            watched.append((LOG_KEY, after))
        body = requests(keys, watched, deaths=map(living_key, sorted(leases)))
        try:
            headers = (*self._gateway.headers(), *HEADERS)
            connection.send(request(str(endpoint), WATCH, body, *headers), give_up_s)
        except BaseException:
            connection.close()
            raise
        self._reader = ReplyReader()
        self._lines = Lines(keys, cluster.label)
        return connection

    def _look_for_dead(self, leases: frozenset[str], until_s: float, wakes: list[Wake]) -> None:
        """Leases that ended before they were watched."""
        keys, order = self._shared.keys, sorted(leases)
        reads = [keys.range(living_key(session), keys_only=True) for session in order]
        answer = run(self._gateway.txn({"success": reads}, until_s, repeatable=True))
        for session, response in zip(order, answer["responses"], strict=True):
            if not keys.found(response).kvs:
                wakes.append(Wake(self.inbox, session, 0, WAKE_DIED))

    def _looks(self) -> list[Wake]:
        with self._mutex:
            return [Wake(self.inbox, self._session, n, WAKE_LOOK) for n in sorted(self._ahead)]

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lost(self) -> None:
        self._drop()
        self._retry_at_s = monotonic() + self._retry_s

    # ── hearing ──────────────────────────────────────────────────────────────────────

    def _wait(self, until_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        now_s = monotonic()
        waits = [] if until_s is None else [until_s - now_s]
        if self._connection is not None:
            poll.register(self._connection.stream, select.POLLIN)
            leases_due_s = self._leases_due()
            if leases_due_s is not None:
                waits.append(leases_due_s)
        else:
            waits.append(self._retry_at_s - now_s)
        ready = dict(poll.poll(max(0, min(waits) * 1000) if waits else None))
        if self._waker.fileno() in ready:
            self._waker.take()

    def _read(self, wakes: list[Wake]) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            # Until nothing is left: TLS may have more in store than the socket shows.
            while (data := connection.stream.receive_nowait()) is not None:
                self._reader.feed(data)
                if self._reader.status != 200:
                    # The token may be too old; the next request of ours finds out.
                    self._shared.cluster.token = ""
                    self._lost()
                    return
                for change in self._lines.feed(self._reader.take()):
                    self._take(change, wakes)
                self._seen = max(self._seen, self._lines.revision)
                if self._reader.done:
                    # The connection may well stay: nothing will ever come of it.
                    raise self._lines.end()
        except CompactedError as error:
            # What was said up to there, nobody will hear: look for ourselves.
            self._seen = error.revision - 1
            wakes += self._looks()
            self._drop()
        except (OSError, ProtocolError, StoreError, ValueError):
            self._shared.cluster.suspect(connection.endpoint)
            self._lost()

    def _take(self, change: Change, wakes: list[Wake]) -> None:
        key, revision = change.kv.key, change.kv.mod
        if key == LOG_KEY:
            if self._hears_log:
                wakes.append(Wake(self.inbox, self._session, 0, WAKE_EVENTS))
        elif key == watcher_key(self._session):
            self._hears_log = not change.deleted
            if self._hears_log:
                self._seen = revision
                self._drop()
        elif change.deleted:
            if key != self.inbox:
                wakes.append(Wake(self.inbox, key.split("\x1f")[1], 0, WAKE_DIED))
        elif key == self.inbox:
            for n, what, token, *line in decode(change.kv.value):
                if what == FOLLOWED:
                    self._shared.followed(self._session, n, line[0])
                    continue
                if line and line[0]:
                    self._shared.hold_as_told(self._session, n, line[0], revision)
                wake = Wake(self.inbox, self._session, n, what, token_at(token, revision))
                if what in _BELIEVED:
                    self._deliver(wake)
                elif what in _KNOWN:
                    wakes.append(wake)

    def interrupt(self) -> None:
        self._waker.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Notice the end of any of these sessions, in place of those given before for `n`."""
        with self._mutex:
            if blockers:
                self._ahead[n] = frozenset(blocker.session for blocker in blockers)
            else:
                self._ahead.pop(n, None)
            self._changed_s = monotonic()

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._shared.listeners.pop(self._session, None)
        if self._process == os.getpid():
            self._drop()
            self._gateway.transport.close()
            self._waker.close()
