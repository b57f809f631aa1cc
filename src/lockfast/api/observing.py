"""Subscribe observers to the events of one client or of all clients of this process."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lockfast import process_observer
from lockfast.flow.emitter import Emitter, Tracer
from lockfast.runtimes.platform import at_fork

if TYPE_CHECKING:
    from lockfast.events import Event
    from lockfast.telemetry.delivery import Delivery

    Sink = Callable[[Event], None]

EXIT_S: Final = 1.0
"""How long the exit of the interpreter waits for observers."""


class Subscription:
    """An observer that receives events until `close()`, or until the end of a `with` block."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def delivered(self) -> int:
        """How many events the observer has received."""
        return self._delivery.delivered

    @property
    def dropped(self) -> int:
        """How many events were dropped because the observer was too slow."""
        return self._delivery.dropped

    @property
    def errors(self) -> int:
        """How many times the observer has raised."""
        return self._delivery.errors

    def flush(self, timeout: float = 2.0) -> bool:
        """Wait until everything emitted so far is delivered. Return False on a timeout."""
        return self._delivery.flush(timeout)

    def close(self) -> None:
        """Deliver pending events and unsubscribe."""
        _registry.remove(self._delivery)
        self._delivery.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def observe(observer: Callable[[Event], None]) -> Subscription:
    """Call `observer` with each event of all clients and guards of this process.

    It is called on its own background thread, a few milliseconds after the event. If it
    is too slow, events are dropped; if it raises, the event is skipped. Both are counted by
    the subscription and logged once, and neither delays a client.
    """
    delivery = _delivery_to(observer)
    _registry.add(delivery)
    return Subscription(delivery)


def set_tracer(tracer: Tracer | None) -> None:
    """Attach a tracer to all clients of this process, present and future."""
    _registry.set_tracer(tracer)


def attach(emitter: Emitter, observers: Sequence[Callable[[Event], None]]) -> None:
    """Connect a new client to its own observers and to those of the process."""
    if not callable(getattr(observers, "__iter__", None)):
        raise TypeError(f"observers must be a list of callables, not {observers!r}")
    _registry.attach(emitter, [_delivery_to(observer) for observer in observers])


def attach_inner(emitter: Emitter, delivery: Delivery) -> None:
    """Add an internal observer to a client; it also receives the events of guards."""
    _registry.attach_inner(emitter, delivery)


def detach(emitter: Emitter) -> None:
    """Deliver the pending events of a closed client, and end its observers."""
    for delivery in _registry.detach(emitter):
        delivery.close_soon()


def _delivery_to(observer: object) -> Delivery:
    from lockfast.telemetry.delivery import Delivery

    if not callable(observer):
        raise TypeError(f"an observer must be callable with one event, not {observer!r}")
    return Delivery(observer)


class _Registry:
    """The observers of each client. Changes are rare, so each one rebuilds the fan-outs."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._mutex = threading.RLock()
        self._of_process: list[Delivery] = []
        self._of_guards: weakref.WeakSet[Delivery] = weakref.WeakSet()
        self._of_client: weakref.WeakKeyDictionary[Emitter, list[Delivery]] = (
            weakref.WeakKeyDictionary()
        )
        self._tracer: Tracer | None = None

    def add(self, delivery: Delivery) -> None:
        with self._mutex:
            self._of_process.append(delivery)
            self._rebuild()

    def remove(self, delivery: Delivery) -> None:
        with self._mutex:
            if delivery in self._of_process:
                self._of_process.remove(delivery)
            self._rebuild()

    def attach(self, emitter: Emitter, deliveries: list[Delivery]) -> None:
        with self._mutex:
            self._of_client[emitter] = deliveries
            emitter.observer = _fan_out([*self._of_process, *deliveries])
            emitter.tracer = self._tracer

    def attach_inner(self, emitter: Emitter, delivery: Delivery) -> None:
        with self._mutex:
            self._of_client.setdefault(emitter, []).append(delivery)
            self._of_guards.add(delivery)
            self._rebuild()

    def detach(self, emitter: Emitter) -> list[Delivery]:
        with self._mutex:
            deliveries = self._of_client.pop(emitter, [])
            # The keeper may still emit events, for the observers of the process.
            emitter.observer = _fan_out(self._of_process)
            for delivery in deliveries:
                self._of_guards.discard(delivery)
            self._rebuild()
            return deliveries

    def set_tracer(self, tracer: Tracer | None) -> None:
        with self._mutex:
            self._tracer = tracer
            for emitter in list(self._of_client):
                emitter.tracer = tracer

    def _rebuild(self) -> None:
        for emitter, own in list(self._of_client.items()):
            emitter.observer = _fan_out([*self._of_process, *own])
        process_observer.observe = _fan_out([*self._of_process, *self._of_guards])

    def deliveries(self) -> list[Delivery]:
        with self._mutex:
            own = [delivery for each in self._of_client.values() for delivery in each]
            return [*self._of_process, *own]

    def after_fork_in_child(self) -> None:
        self._mutex = threading.RLock()  # another thread of the parent may have locked it


def _fan_out(sinks: Sequence[Callable[[Any], None]]) -> Callable[[Any], None] | None:
    if not sinks:
        return None
    if len(sinks) == 1:
        return sinks[0]
    fixed = tuple(sinks)

    def to_all(event: Any) -> None:
        for sink in fixed:
            sink(event)

    return to_all


_registry = _Registry()
at_fork(after_in_child=_registry.after_fork_in_child)


@atexit.register
def _flush_all() -> None:
    """Deliver pending events at interpreter exit, for at most EXIT_S in total."""
    import time

    until = time.monotonic() + EXIT_S
    for delivery in _registry.deliveries():
        delivery.flush(max(0.0, until - time.monotonic()))
