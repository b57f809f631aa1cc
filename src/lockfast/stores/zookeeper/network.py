"""Connect through kazoo, using only its asynchronous calls: the network of the shipped store.

A synchronous kazoo call blocks forever once the connection is lost, so nothing here waits without a
timeout. When a session has expired, kazoo opens a new one, which must not continue ours: a link
that has lost its session stops its client and is never used again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from kazoo import exceptions as kz
from kazoo.client import CLOSED_STATES, KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol import serialization as wire
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from lockfast.errors import (
    CHECK_ADDRESS,
    AccessDeniedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)
from lockfast.ports import Signal
from lockfast.runtimes.threads import ThreadSignal
from lockfast.stores.derived.machine import ThisMachine
from lockfast.stores.http.members import unreachable
from lockfast.stores.zookeeper import transport as t
from lockfast.stores.zookeeper.address import Address
from lockfast.stores.zookeeper.handler import DirectHandler, QuietLog
from lockfast.stores.zookeeper.transport import (
    Answer,
    Flight,
    LinkLostError,
    OnAnswer,
    OnEvent,
    Stat,
    Waiting,
)

_log = logging.getLogger("lockfast.zookeeper")

CREATE2, CREATE_CONTAINER, ERROR = 15, 19, -1
EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4
_ERRORS: Final = {
    kz.NoNodeError: t.NO_NODE,
    kz.NodeExistsError: t.NODE_EXISTS,
    kz.BadVersionError: t.BAD_VERSION,
    kz.NotEmptyError: t.NOT_EMPTY,
    kz.NoAuthError: t.NO_AUTH,
}
_CODES: Final = {kind.code: name for kind, name in _ERRORS.items()}
_EXPIRED_CODE: Final = kz.SessionExpiredError.code


class _CreateContainer(wire.Create):  # type: ignore[misc]  # kazoo has no types
    type = CREATE_CONTAINER


class _Multi(NamedTuple):
    """A multi as kazoo sends it; its reply keeps the index of the operation that failed."""

    operations: Sequence[Any]
    type: int = wire.Transaction.type

    def serialize(self) -> bytes:
        return bytes(wire.Transaction(self.operations).serialize())

    def deserialize(self, data: bytes, offset: int) -> list[Answer]:
        """Decode one answer, in a list because kazoo expects the reply to a multi to be one."""
        stats: list[Stat | None] = []
        numbered: list[str] = []
        codes: list[int] = []
        header, offset = wire.MultiHeader.deserialize(data, offset)
        while not header.done:
            stat = None
            if header.type in (wire.Create.type, CREATE2, CREATE_CONTAINER):
                path, offset = wire.read_string(data, offset)
                if getattr(self.operations[len(stats)], "flags", 0) & SEQUENCE:
                    numbered.append(path.rpartition("/")[2])
                if header.type != wire.Create.type:
                    offset += wire.stat_struct.size
            elif header.type == wire.SetData.type:
                stat = _stat(wire.ZnodeStat._make(wire.stat_struct.unpack_from(data, offset)))
                offset += wire.stat_struct.size
            elif header.type == ERROR:
                codes.append(wire.int_struct.unpack_from(data, offset)[0])
                offset += wire.int_struct.size
            stats.append(stat)
            header, offset = wire.MultiHeader.deserialize(data, offset)
        for at, code in enumerate(codes):
            if code not in (0, kz.RuntimeInconsistency.code):
                return [Answer(_CODES.get(code, t.OTHER), failed=at)]
        return [Answer("", stats=tuple(stats), numbered=tuple(numbered))]


def _stat(stat: Any) -> Stat:
    return Stat(stat.mzxid, stat.mtime, stat.version, stat.numChildren, stat.czxid)


class KazooFlight:
    """Requests in flight: kazoo's results, in order."""

    def __init__(self, link: KazooLink, results: Sequence[Any], *, writes: bool) -> None:
        self.link = link
        self.results = results
        self.writes = writes

    def answers(self, timeout_s: float = 0.0) -> list[Answer]:
        """Wait for all answers and return them."""
        label, found = self.link.label, []
        if self.results:
            # Answers arrive in order; wait for the last one, so that this thread wakes up once.
            self.results[-1].wait(timeout_s)
        for result in self.results:
            try:
                found.append(_answer(result.get(timeout=0.0)))
            except tuple(_ERRORS) as error:
                found.append(Answer(_ERRORS[type(error)]))
            except (kz.SessionExpiredError, kz.SessionMovedError):
                raise LinkLostError from None
            except kz.AuthFailedError:
                raise AccessDeniedError(
                    label, "refused our credentials", "check user and password in the URL"
                ) from None
            except (KazooTimeoutError, kz.ConnectionLoss, kz.ConnectionClosedError) as error:
                if self.link.is_lost():
                    raise LinkLostError from None
                what = "did not answer in time"
                if not isinstance(error, KazooTimeoutError):
                    what = "lost the connection"
                if self.writes:
                    raise OutcomeUnknownError(label, what) from None
                if self.link.failure is not None:
                    raise unreachable(label, self.link.failure) from None
                advice = "" if self.link.timeout_ms else CHECK_ADDRESS
                raise StoreUnavailableError(label, what, advice) from None
        return found


def _answer(value: Any) -> Answer:
    if isinstance(value, list) and value and isinstance(value[0], Answer):
        return value[0]
    if isinstance(value, tuple) and hasattr(value, "mzxid"):
        return Answer("", b"", _stat(value))
    if isinstance(value, tuple) and isinstance(value[0], list):
        return Answer("", b"", _stat(value[1]), tuple(value[0]))
    if isinstance(value, tuple):
        return Answer("", value[0] or b"", _stat(value[1]))
    return Answer()


def _call(client: Any, refuse: Callable[..., Any], request: Any, result: Any) -> None:
    """Queue a request as kazoo does, which takes Ctrl-C for a closed connection."""
    if client._state in CLOSED_STATES:
        refuse(request, result)
        return
    client._queue.append((request, result))
    try:
        client._connection._write_sock.send(b"\0")
    except (OSError, AttributeError):  # it was closed just now
        result.set_exception(kz.ConnectionClosedError("Connection has been closed"))


class KazooLink:
    def __init__(
        self,
        address: Address,
        timeout_ms: int,
        on_event: OnEvent,
        on_lost: Callable[[], None],
        *,
        pings: bool,
    ) -> None:
        self.timeout_ms = 0
        self.label = address.label
        self._pings = pings
        self._address = address
        self._asked_ms = timeout_ms
        self._on_event = on_event
        self._on_lost = on_lost
        self._process = os.getpid()
        self._mutex = threading.Lock()
        self._client: Any = None
        self._opened: Any = None
        self._is_lost = False

    def open(self) -> KazooFlight:
        with self._mutex:
            if self._client is None:
                self._connect()
        return KazooFlight(self, [self._opened], writes=False)

    def _connect(self) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0)
        client = self._client = KazooClient(
            timeout=self._asked_ms / 1000,
            read_only=False,  # a server that is cut off from the others cannot grant locks
            connection_retry=retry,
            handler=DirectHandler(self._address),
            logger=QuietLog(),
            **self._address.client_options(),
        )
        client.handler.client = client
        client._call = partial(_call, client, client._call)
        self._acl = client.default_acl
        self._opened = client.handler.async_result()
        connect = client._connection._connect

        def connected(*args: Any) -> Any:
            read_timeout_ms, connect_timeout_ms = connect(*args)
            # The only trace that kazoo keeps of the granted timeout: two thirds of it.
            self.timeout_ms = round(read_timeout_ms * 3 / 2)
            if not self._opened.ready():
                self._opened.set(None)
            return read_timeout_ms, connect_timeout_ms

        client._connection._connect = connected
        if not self._pings:
            ping = client._connection._send_ping
            # Only our own keep-alives renew a session. A ping while an answer is pending detects a
            # dead connection.
            client._connection._send_ping = lambda *args: client._pending and ping(*args)
        client.add_listener(self._changed)
        client.start_async()

    def _changed(self, state: str) -> None:
        """Handle a state change; kazoo's thread calls this before it opens another session."""
        is_refused = self._client.client_state == KeeperState.AUTH_FAILED
        if state == KazooState.LOST and (self.timeout_ms or is_refused):
            self._is_lost = True
            if is_refused:
                self._opened.set_exception(kz.AuthFailedError())
            threading.Thread(target=self.stop, name="lockfast zookeeper", daemon=True).start()
            self._on_lost()
        elif state == KazooState.SUSPENDED:
            self._on_event("")

    def submit(self, requests: Sequence[t.Request]) -> KazooFlight:
        client = self._client
        writes = any(isinstance(one, t.Multi | t.Create | t.Delete | t.Set) for one in requests)
        if self.is_lost():
            result = client.handler.async_result()
            result.set_exception(kz.SessionExpiredError())
            return KazooFlight(self, [result], writes=False)
        return KazooFlight(self, [self._send(client, one) for one in requests], writes=writes)

    def watch(self, path: str, on_answer: OnAnswer) -> None:
        flight = self.submit([t.Get(path, True)])

        def answered(_: Any) -> None:
            answer = None
            with contextlib.suppress(StoreError, LinkLostError):
                (answer,) = flight.answers()
            try:
                on_answer(answer)
            except Exception:
                # An error must not end the connection thread, and with it the session.
                _log.exception("a callback for a ZooKeeper watch failed")

        flight.results[0].rawlink(answered)

    def _send(self, client: Any, request: t.Request) -> Any:
        if isinstance(request, t.Get):
            return client.get_async(request.path, self._watch if request.watch else None)
        if isinstance(request, t.Exists):
            return client.exists_async(request.path, self._watch if request.watch else None)
        if isinstance(request, t.Children):
            return client.get_children_async(request.path, include_data=True)
        if isinstance(request, t.Sync):
            return client.sync_async("/")
        operations = request.operations if isinstance(request, t.Multi) else (request,)
        result = client.handler.async_result()
        client._call(_Multi([self._operation(one) for one in operations]), result)
        return result

    def _operation(self, operation: t.Operation) -> Any:
        if isinstance(operation, t.Create):
            if operation.container:
                return _CreateContainer(operation.path, operation.data, self._acl, CONTAINER)
            flags = EPHEMERAL * operation.ephemeral + SEQUENCE * operation.sequence
            return wire.Create(operation.path, operation.data, self._acl, flags)
        if isinstance(operation, t.Delete):
            return wire.Delete(operation.path, operation.version)
        if isinstance(operation, t.Set):
            return wire.SetData(operation.path, operation.data, operation.version)
        return wire.CheckVersion(operation.path, operation.version)

    def _watch(self, event: Any) -> None:
        self._on_event(event.path or "")

    @property
    def failure(self) -> OSError | None:
        """Why the last attempt to connect has failed."""
        return self._client.handler.failure if self._client is not None else None

    def is_lost(self) -> bool:
        # A forked child shares its parent's sockets and must not touch them.
        return self._is_lost or self._process != os.getpid()

    def close(self) -> None:
        if self._client is None or self.is_lost():
            return
        self._is_lost = True
        threading.Thread(target=self.stop, name="lockfast zookeeper", daemon=True).start()

    def stop(self) -> None:
        """End the session and wait until the server has done so."""
        client = self._client
        client.remove_listener(self._changed)
        client.stop()
        client.close()


class BlockingWaiting:
    """How threads wait."""

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        assert isinstance(flight, KazooFlight)
        return flight.answers(timeout_ms / 1000)

    def signal(self) -> Signal:
        return ThreadSignal()


class KazooNetwork(ThisMachine):
    """This machine's connections, clocks and random numbers."""

    def __init__(self, address: Address, caller: Waiting | None = None) -> None:
        """`caller`: how API callers wait, if they do not block."""
        super().__init__()
        self._address = address
        self.keeper: Waiting = BlockingWaiting()
        self.caller = caller or self.keeper

    def link(
        self, timeout_ms: int, on_event: OnEvent, on_lost: Callable[[], None], *, pings: bool
    ) -> KazooLink:
        return KazooLink(self._address, timeout_ms, on_event, on_lost, pings=pings)
