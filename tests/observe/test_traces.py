"""Spans of acquires and leases, and the link from a waiter to its holder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import lockfast
from lockfast import events, otel
from lockfast.core.commands import ResourceView
from lockfast.flow import observed
from lockfast.flow.client import Core
from lockfast.flow.holding import Holding


class Traces:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")
        self.subscription = otel.enable(self.provider, lock_names=["orders/{id}"])

    def spans(self, name: str) -> list[ReadableSpan]:
        assert self.subscription.flush()
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait_for(self, name: str, count: int) -> list[ReadableSpan]:
        until = time.monotonic() + 30
        while len(found := self.spans(name)) < count:
            assert time.monotonic() < until
            time.sleep(0.01)
        return found


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.subscription.close()
    traces.provider.shutdown()


@pytest.fixture
def client() -> Iterator[lockfast.Client]:
    with lockfast.connect("memory://", owner="me") as client:
        yield client


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_an_acquire_and_its_lease_are_children_of_the_caller(
    client: lockfast.Client, traces: Traces
) -> None:
    with traces.tracer.start_as_current_span("request") as request:
        with client.lock("orders/42") as lease:
            pass
    (acquire,) = traces.wait_for("acquire orders/{id}", 1)
    (hold,) = traces.wait_for("hold orders/{id}", 1)
    for span in (acquire, hold):
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
        assert attributes(span)["lockfast.name"] == "orders/42"
    assert attributes(acquire)["lockfast.outcome"] == "granted"
    assert attributes(acquire)["lockfast.contended"] is False
    assert attributes(hold)["lockfast.token"] == lease.token
    assert acquire.end_time == hold.start_time
    assert acquire.start_time is not None
    assert acquire.end_time is not None
    assert acquire.start_time <= acquire.end_time


def wait_behind(client: lockfast.Client, traces: Traces) -> threading.Thread:
    """Acquire a lock in another thread, within its own trace, and release it at once."""

    def wait() -> None:
        with traces.tracer.start_as_current_span("slow request"), client.lock("orders/1"):
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def span_of_waiter(traces: Traces) -> ReadableSpan:
    """Return the span of the one of two acquires that had to wait."""
    acquires = traces.wait_for("acquire orders/{id}", 2)
    return next(span for span in acquires if attributes(span)["lockfast.contended"])


def test_a_waiter_links_to_the_trace_of_its_holder(client: lockfast.Client, traces: Traces) -> None:
    queued = threading.Event()
    watching = lockfast.observe(
        lambda event: queued.set() if isinstance(event, events.AcquireQueued) else None
    )
    with traces.tracer.start_as_current_span("greedy request") as greedy:
        with client.lock("orders/1"):
            thread = wait_behind(client, traces)
            assert queued.wait(30)
    thread.join()
    watching.close()
    waiter = span_of_waiter(traces)
    (link,) = waiter.links
    assert link.context.trace_id == greedy.get_span_context().trace_id
    assert waiter.context is not None
    assert waiter.context.trace_id != link.context.trace_id
    queueing = next(event for event in waiter.events if event.name == "queued")
    assert dict(queueing.attributes or {})["lockfast.position"] == 1
    assert float(str(attributes(waiter)["lockfast.wait_ms"])) > 0


def test_a_waiter_granted_before_it_reads_its_queue_does_not_link_to_itself(
    client: lockfast.Client, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_queue, asked, released = observed._queue, threading.Event(), threading.Event()

    async def read_too_late(core: Core, holding: Holding) -> ResourceView | None:
        asked.set()
        assert released.wait(30)
        return await read_queue(core, holding)

    monkeypatch.setattr(observed, "_queue", read_too_late)
    with client.lock("orders/1"):
        thread = wait_behind(client, traces)
        assert asked.wait(30)
    released.set()
    thread.join()
    waiter = span_of_waiter(traces)
    assert list(waiter.links) == []
    assert "queued" in [event.name for event in waiter.events]


def test_a_lost_lease_and_a_timeout_are_errors(client: lockfast.Client, traces: Traces) -> None:
    lease = client.lock("orders/1").acquire()
    with pytest.raises(lockfast.AcquireTimeoutError):
        client.lock("orders/1").acquire(timeout=0.01)
    client.revoke("orders/1", reason="stuck")
    assert lease.lost.wait(30)
    (hold,) = traces.wait_for("hold orders/{id}", 1)
    assert hold.status.status_code is StatusCode.ERROR
    assert [event.name for event in hold.events][-2:] == ["revoked", "lost"]
    acquires = traces.wait_for("acquire orders/{id}", 2)
    late = next(span for span in acquires if attributes(span)["lockfast.outcome"] == "timeout")
    assert late.status.status_code is StatusCode.ERROR


def test_keep_alives_are_events_of_the_lease(traces: Traces) -> None:
    with lockfast.connect("memory://", ttl=0.3) as client:
        with client.lock("a"):
            time.sleep(0.35)
    (hold,) = traces.wait_for("hold lock", 1)
    assert "renewed" in [event.name for event in hold.events]


def test_the_value_of_an_election_is_the_applications(
    client: lockfast.Client, traces: Traces
) -> None:
    with client.election("boss").campaign(value="host-7"):
        assert client.inspect("boss", kind="election").holders[0].value == "host-7"
    with client.lock("a"):
        value = client.inspect("a").holders[0].value
        assert value is not None
        assert value.startswith("traceparent=00-")


def test_nothing_is_traced_after_close(client: lockfast.Client, traces: Traces) -> None:
    traces.subscription.close()
    with client.lock("a"):
        assert client.inspect("a").holders[0].value is None
    assert client._core.emitter.tracer is None


def test_a_tracer_that_fails_keeps_nobody_from_acquiring(client: lockfast.Client) -> None:
    class Broken(TracerProvider):
        def get_tracer(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
            return self

        def start_span(self, *arguments: object, **options: object) -> object:
            raise RuntimeError("no spans today")

    with otel.enable(Broken()):
        with client.lock("a") as lease:
            lease.check()


def test_metrics_through_opentelemetry(client: lockfast.Client) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with otel.enable_metrics(provider) as subscription:
        with client.lock("a"):
            pass
        assert subscription.flush()
        data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    (point,) = found["lockfast_acquire_total"].data.data_points
    assert point.value == 1  # type: ignore[union-attr]
    assert dict(point.attributes or {}) == {
        "store": "memory",
        "mode": "exclusive",
        "outcome": "granted",
    }
    assert {"lockfast_acquire_wait_seconds", "lockfast_locks_held"} <= set(found)
    provider.shutdown()
