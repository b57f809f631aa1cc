"""Every metric that Lockfast exports, as data, and how events change them.

`Recorder` is an observer that turns events into calls of a `Meter`. There is one meter for
Prometheus and one for OpenTelemetry, so both export the same figures under the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from lockfast import events as e
from lockfast.core.modes import ELECTION
from lockfast.telemetry.templates import Templates

COUNTER, HISTOGRAM, GAUGE = "counter", "histogram", "gauge"

WAITS_S: Final = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
REQUESTS_S: Final = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0)
LENGTHS: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0, 10000.0)


class Measure(NamedTuple):
    """One metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str
    buckets: tuple[float, ...] = ()
    across_processes: str = ""
    """For a gauge: how the values of several processes are combined."""
    by_lock: bool = False
    """Has the label `lock` if templates are given."""


ACQUIRES: Final = "lockfast_acquire_total"
CONTENDED: Final = "lockfast_acquire_contended_total"
WAIT: Final = "lockfast_acquire_wait_seconds"
QUEUE_LENGTH: Final = "lockfast_queue_length_at_entry"
HOLD: Final = "lockfast_hold_seconds"
HELD: Final = "lockfast_locks_held"
WAITERS: Final = "lockfast_waiters"
TOKEN_AGE: Final = "lockfast_token_age_seconds"
LOST: Final = "lockfast_lease_lost_total"
RENEWALS: Final = "lockfast_renew_total"
KEEPALIVE: Final = "lockfast_keepalive_seconds"
STORE_UP: Final = "lockfast_store_up"
DEADLOCKS: Final = "lockfast_deadlocks_total"
ADMITTED: Final = "lockfast_fence_admitted_total"
REJECTED: Final = "lockfast_fence_rejected_total"
LEADER: Final = "leader_election_master_status"

MEASURES: Final = (
    Measure(
        ACQUIRES, COUNTER, ("store", "mode", "outcome"),
        "Acquires that ended, by outcome: granted, timeout, busy, deadlock, revoked, unavailable, "
        "refused, cancelled",
        by_lock=True,
    ),
    Measure(
        CONTENDED, COUNTER, ("store", "mode"),
        "Acquires that had to wait for another holder, whatever their outcome", by_lock=True,
    ),
    Measure(
        WAIT, HISTOGRAM, ("store", "mode"),
        "Time from the call of acquire to the grant", WAITS_S, by_lock=True,
    ),
    Measure(
        QUEUE_LENGTH, HISTOGRAM, ("store", "mode"),
        "Claims in the queue when a claim entered, itself included; 0 if granted at once",
        LENGTHS, by_lock=True,
    ),
    Measure(
        HOLD, HISTOGRAM, ("store", "mode"),
        "Time from the grant to the release or loss", WAITS_S, by_lock=True,
    ),
    Measure(HELD, GAUGE, ("store", "mode"), "Leases held now", (), "livesum", by_lock=True),
    Measure(WAITERS, GAUGE, ("store", "mode"), "Acquires that wait now", (), "livesum",
            by_lock=True),
    Measure(
        TOKEN_AGE, GAUGE, ("store",),
        "Age of the oldest token held, updated at each grant, keep-alive and release", (),
        "livemax",
    ),
    Measure(
        LOST, COUNTER, ("store", "reason"),
        "Leases lost, by reason: expired, ended, revoked, max_hold, missing, keeper",
        by_lock=True,
    ),
    Measure(RENEWALS, COUNTER, ("store", "outcome"), "Keep-alives, by outcome: ok, failed"),
    Measure(KEEPALIVE, HISTOGRAM, ("store",), "Duration of keep-alive requests", REQUESTS_S),
    Measure(
        STORE_UP, GAUGE, ("store",),
        "1 if the last request reached the store, 0 during an outage", (), "livemin",
    ),
    Measure(DEADLOCKS, COUNTER, ("store",), "Deadlocks that this process found and broke"),
    Measure(ADMITTED, COUNTER, ("guard",), "Tokens that a guard let through"),
    Measure(REJECTED, COUNTER, ("guard",), "Stale tokens that a guard refused"),
    Measure(
        LEADER, GAUGE, ("name",),
        "1 while this process leads the election; `name` is its template, or empty", (),
        "livesum",
    ),
)  # fmt: skip


class Meter(Protocol):
    """The destination of figures. `labels` are the values, in the order of the measure's labels."""

    def add(self, measure: str, labels: tuple[str, ...], amount: int) -> None:
        """Increase a counter."""

    def record(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        """Add a value to a histogram."""

    def set(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        """Set a gauge."""


class _Live(NamedTuple):
    labels: tuple[str, ...]
    granted_us: int


_Key = tuple[str, int, int]
"""Session, claim number, token; the local users of a retained lock share the first two."""


def labels_of(measure: Measure, templates: Templates) -> tuple[str, ...]:
    """Return the label names of a measure."""
    return (*measure.labels, "lock") if measure.by_lock and templates.texts else measure.labels


class Recorder:
    """Turns events into figures. Called by one thread at a time."""

    def __init__(self, meter: Meter, lock_names: Iterable[str] = ()) -> None:
        self.templates = Templates(lock_names)
        self._meter = meter
        self.reset()
        self._actions: dict[type, Callable[[Any], None]] = {
            e.AcquireQueued: self._queued,
            e.AcquireGranted: self._granted,
            e.AcquireGaveUp: self._gave_up,
            e.LeaseReleased: self._released,
            e.LeaseConverted: self._converted,
            e.LeaseLost: self._lost,
            e.SessionOpened: self._opened,
            e.SessionRenewed: self._renewed,
            e.KeepAliveFailed: self._keep_alive_failed,
            e.SessionEnded: self._ended,
            e.StoreUnreachable: self._unreachable,
            e.StoreBack: self._back,
            e.DeadlockFound: self._deadlock,
            e.GuardAdmitted: self._admitted,
            e.GuardRefused: self._refused,
        }

    def reset(self) -> None:
        """Discard all leases and waiters; called in a forked child, which has none."""
        self._held: dict[str, dict[_Key, _Live]] = {}
        """Held leases per scheme, the oldest token first."""
        self._waiting: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
        """Waiting acquires by owner, actor, kind and name: an actor waits for one at a time."""
        self._counts: dict[tuple[str, tuple[str, ...]], int] = {}
        """The values of the gauges that are counts."""

    def __call__(self, event: e.Event) -> None:
        action = self._actions.get(type(event))
        if action is not None:
            action(event)

    def _lock(self, name: str) -> tuple[str, ...]:
        return (self.templates.of(name),) if self.templates.texts else ()

    def _labels(self, event: Any) -> tuple[str, ...]:
        subject = event.subject
        return (event.source.scheme, subject.mode, *self._lock(subject.name))

    # ── acquires ─────────────────────────────────────────────────────────────────────

    def _change(self, gauge: str, labels: tuple[str, ...], change: int) -> None:
        count = self._counts[gauge, labels] = self._counts.get((gauge, labels), 0) + change
        self._meter.set(gauge, labels, count)

    def _queued(self, event: e.AcquireQueued) -> None:
        labels = self._labels(event)
        if self._waiting.setdefault(_waiter(event), labels) is labels:
            self._change(WAITERS, labels, 1)

    def _no_longer_waits(self, event: e.AcquireGranted | e.AcquireGaveUp) -> None:
        labels = self._waiting.pop(_waiter(event), None)
        if labels is not None:
            self._change(WAITERS, labels, -1)

    def _outcome(self, event: e.AcquireGranted | e.AcquireGaveUp, outcome: str) -> None:
        scheme, mode, *lock = labels = self._labels(event)
        self._meter.add(ACQUIRES, (scheme, mode, outcome, *lock), 1)
        if event.contended:
            self._meter.add(CONTENDED, labels, 1)
            self._no_longer_waits(event)

    def _granted(self, event: e.AcquireGranted) -> None:
        labels = self._labels(event)
        self._outcome(event, "granted")
        self._meter.record(WAIT, labels, event.wait_us / 1e6)
        self._meter.record(QUEUE_LENGTH, labels, event.queue_length)
        scheme = event.source.scheme
        self._held.setdefault(scheme, {})[_key(event)] = _Live(labels, event.at_us)
        self._change(HELD, labels, 1)
        self._age(scheme, event.at_us)
        if event.subject.kind == ELECTION:
            self._change(LEADER, (self.templates.of(event.subject.name),), 1)

    def _gave_up(self, event: e.AcquireGaveUp) -> None:
        self._outcome(event, event.why)

    # ── leases ───────────────────────────────────────────────────────────────────────

    def _drop(self, scheme: str, key: _Key) -> _Live | None:
        live = self._held.get(scheme, {}).pop(key, None)
        if live is not None:
            self._change(HELD, live.labels, -1)
        return live

    def _age(self, scheme: str, now_us: int) -> None:
        oldest = next(iter(self._held.get(scheme, {}).values()), None)
        age_us = now_us - oldest.granted_us if oldest is not None else 0
        self._meter.set(TOKEN_AGE, (scheme,), age_us / 1e6)

    def _over(self, event: e.LeaseReleased | e.LeaseLost) -> None:
        scheme = event.source.scheme
        was_held = self._drop(scheme, _key(event)) is not None
        self._age(scheme, event.at_us)
        self._meter.record(HOLD, self._labels(event), event.hold_us / 1e6)
        if was_held and event.subject.kind == ELECTION:
            self._change(LEADER, (self.templates.of(event.subject.name),), -1)

    def _released(self, event: e.LeaseReleased) -> None:
        self._over(event)

    def _lost(self, event: e.LeaseLost) -> None:
        scheme, _, *lock = self._labels(event)
        self._meter.add(LOST, (scheme, event.why, *lock), 1)
        self._over(event)

    def _converted(self, event: e.LeaseConverted) -> None:
        scheme = event.source.scheme
        live = self._drop(scheme, (event.session, event.n, event.former_token))
        if live is not None:
            labels = self._labels(event)
            new = event.token != event.former_token
            since_us = event.at_us if new else live.granted_us
            self._held[scheme][_key(event)] = _Live(labels, since_us)
            self._change(HELD, labels, 1)

    # ── sessions, stores, guards ─────────────────────────────────────────────────────

    def _opened(self, event: e.SessionOpened) -> None:
        self._meter.set(STORE_UP, (event.source.scheme,), 1)

    def _renewed(self, event: e.SessionRenewed) -> None:
        scheme = event.source.scheme
        self._meter.add(RENEWALS, (scheme, "ok"), 1)
        self._meter.record(KEEPALIVE, (scheme,), event.took_us / 1e6)
        self._age(scheme, event.at_us)

    def _keep_alive_failed(self, event: e.KeepAliveFailed) -> None:
        scheme = event.source.scheme
        self._meter.add(RENEWALS, (scheme, "failed"), 1)
        self._meter.record(KEEPALIVE, (scheme,), event.took_us / 1e6)

    def _ended(self, event: e.SessionEnded) -> None:
        # If events of its leases were dropped, the gauges recover here.
        held = self._held.get(event.source.scheme, {})
        for key in [key for key in held if key[0] == event.session]:
            self._drop(event.source.scheme, key)
        self._age(event.source.scheme, event.at_us)

    def _unreachable(self, event: e.StoreUnreachable) -> None:
        self._meter.set(STORE_UP, (event.source.scheme,), 0)

    def _back(self, event: e.StoreBack) -> None:
        self._meter.set(STORE_UP, (event.source.scheme,), 1)

    def _deadlock(self, event: e.DeadlockFound) -> None:
        self._meter.add(DEADLOCKS, (event.source.scheme,), 1)

    def _admitted(self, event: e.GuardAdmitted) -> None:
        self._meter.add(ADMITTED, (event.guard,), 1)

    def _refused(self, event: e.GuardRefused) -> None:
        self._meter.add(REJECTED, (event.guard,), 1)


def _key(event: e.AcquireGranted | e.LeaseReleased | e.LeaseLost | e.LeaseConverted) -> _Key:
    return (event.session, event.n, event.token)


def _waiter(
    event: e.AcquireQueued | e.AcquireGranted | e.AcquireGaveUp,
) -> tuple[str, str, str, str]:
    return (event.source.owner, event.subject.actor, event.subject.kind, event.subject.name)
