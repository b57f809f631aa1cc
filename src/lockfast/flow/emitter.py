"""Where a client's events go: the observer port of the flow code.

While nobody observes, `observer` is None and emitting costs one comparison; events are not
even created. An observer must neither raise nor block, since it is called on the threads that
renew leases. `telemetry/delivery.py` provides such observers; the simulator calls its
observers directly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from lockfast.errors import StoreBusyError, StoreError
from lockfast.flow.log import logger
from lockfast.ports import Runtime

if TYPE_CHECKING:
    from lockfast.events import Event, Observer, Source, Subject

REMIND_US: Final = 60_000_000
"""How often an outage is reported while it lasts."""


class Tracer(Protocol):
    """Follows one acquire from its beginning to the end of its lease. Must not raise."""

    def begin(self, subject: Subject) -> Any:
        """Start a trace in the caller's context; the result travels with all later events."""

    def context(self, trace: Any) -> str:
        """Return what identifies the trace to other processes; "" if there is nothing."""


class Emitter:
    """The observer of one client, the identity of the client, and the state of its store."""

    def __init__(self, runtime: Runtime, store_label: str) -> None:
        self._runtime = runtime
        self._label = store_label
        self.observer: Observer | None = None
        self.tracer: Tracer | None = None
        self.start("")

    def start(self, owner: str) -> None:
        """Begin as the client of this owner; called again in a forked child."""
        self._owner = owner
        self._source: Source | None = None
        self.outage = Outage(self, self._runtime.mutex())

    @property
    def source(self) -> Source:
        if self._source is None:
            from lockfast.events import Source

            self._source = Source(self._label, _kind_of(self._label), self._owner)
        return self._source

    def now_us(self) -> int:
        return self._runtime.now_us()

    def emit(self, event: Event) -> None:
        if self.observer is not None:
            self.observer(event)

    def emit_and_log(self, event: Event) -> None:
        """Emit an event that is logged even if nobody observes."""
        self.emit(event)
        logger.event(event)


_SAME_STORE: Final = {
    "unix": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "etcds": "etcd",
    "postgres": "postgresql",
    "https": "http",
    "zk": "zookeeper",
    "zks": "zookeeper",
    "zookeepers": "zookeeper",
}


def _kind_of(label: str) -> str:
    """Return the kind of store that a URL names: `redis` for `unix://` and `rediss://` too."""
    scheme = label.partition(":")[0].partition("+")[0]
    return _SAME_STORE.get(scheme, scheme)


class Outage:
    """Tells the first failure of a store from the following ones."""

    def __init__(self, emitter: Emitter, mutex: AbstractContextManager[Any]) -> None:
        self._emitter = emitter
        self._mutex = mutex
        self.failures = 0
        """Requests that failed since the last success."""
        self._began_us = 0
        self._remind_us = 0
        self._is_logged = False

    def failed(self, error: StoreError, *, raised: bool = False) -> None:
        """Record that a request did not reach the store, or got no reply.

        If the error is `raised` to the caller, it is not logged as well. A store that has too many
        requests of this client to serve is reachable.
        """
        if isinstance(error, StoreBusyError):
            return
        now_us = self._emitter.now_us()
        with self._mutex:
            self.failures += 1
            if self.failures == 1:
                self._began_us = now_us
            logs = not raised and not (self._is_logged and now_us < self._remind_us)
            emits = logs or (self.failures == 1 and self._emitter.observer is not None)
            if logs:
                self._is_logged = True
                self._remind_us = now_us + REMIND_US
            failures, for_us = self.failures, now_us - self._began_us
        if emits:
            from lockfast.events import StoreUnreachable

            source = self._emitter.source
            event = StoreUnreachable(now_us, source, failures, for_us, error.what)
            if logs:
                self._emitter.emit_and_log(event)
            else:
                self._emitter.emit(event)

    def ended(self) -> None:
        """Record that the store replied. Call it only if `failures` is not 0."""
        now_us = self._emitter.now_us()
        with self._mutex:
            failures, self.failures = self.failures, 0
            was_logged, self._is_logged = self._is_logged, False
            for_us = now_us - self._began_us
        if failures and (was_logged or self._emitter.observer is not None):
            from lockfast.events import StoreBack

            event = StoreBack(now_us, self._emitter.source, failures, for_us)
            if was_logged:
                self._emitter.emit_and_log(event)
            else:
                self._emitter.emit(event)
