"""OpenTelemetry traces and metrics of all clients of this process; needs the extra `otel`.

Each acquire is a span `acquire {template}`, from the call to the grant, and each lease a span
`hold {template}`, from the grant to the release; both are children of the caller's current
span. The trace context of the holder is stored with its claim, so the span of a waiter links to
the span of the holder it waited for. The template is the entry of `lock_names` that the lock's
name matches, else the kind of the lock; the name itself is the attribute `lockfast.name`.

Spans are started by the caller and ended on the observer's thread, so an exporter that blocks
cannot delay a lease. Their timestamps are those of the events.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lockfast import events as e
from lockfast.api.observing import Subscription, observe, set_tracer
from lockfast.errors import StoreMisconfiguredError
from lockfast.runtimes.platform import now_us
from lockfast.telemetry.measures import COUNTER, HISTOGRAM, MEASURES, Recorder, labels_of
from lockfast.telemetry.templates import Templates

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, SpanContext, TracerProvider

__all__ = ["enable", "enable_metrics"]


def enable(
    tracer_provider: TracerProvider | None = None, *, lock_names: Iterable[str] = ()
) -> Subscription:
    """Trace all acquires and leases of this process; close the subscription to stop.

    `lock_names` lists names and templates such as `orders/{id}` for the names of spans.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise _missing() from error
    provider = tracer_provider or trace.get_tracer_provider()
    tracer = _Tracer(provider.get_tracer("lockfast"), Templates(lock_names))
    set_tracer(tracer)
    return _Tracing(observe(tracer.observe))


def enable_metrics(
    meter_provider: MeterProvider | None = None, *, lock_names: Iterable[str] = ()
) -> Subscription:
    """Export the metrics of `lockfast.metrics` through OpenTelemetry, under the same names."""
    try:
        from opentelemetry import metrics
    except ImportError as error:
        raise _missing() from error
    provider = meter_provider or metrics.get_meter_provider()
    otel_meter = provider.get_meter("lockfast")
    meter = _OtelMeter()
    recorder = Recorder(meter, lock_names)
    for measure in MEASURES:
        meter.label_names[measure.name] = labels_of(measure, recorder.templates)
        unit = "s" if measure.name.endswith("_seconds") else "1"
        if measure.kind == COUNTER:
            meter.instruments[measure.name] = otel_meter.create_counter(
                measure.name, unit, measure.about
            )
        elif measure.kind == HISTOGRAM:
            meter.instruments[measure.name] = otel_meter.create_histogram(
                measure.name,
                unit,
                measure.about,
                explicit_bucket_boundaries_advisory=list(measure.buckets),
            )
        else:
            meter.instruments[measure.name] = otel_meter.create_gauge(
                measure.name, unit, measure.about
            )
    return observe(recorder)


def _missing() -> StoreMisconfiguredError:
    return StoreMisconfiguredError(
        "lockfast.otel", "opentelemetry-api is missing", "pip install 'lockfast[otel]'"
    )


class _Tracing(Subscription):
    """A subscription that also stops new traces when it is closed."""

    def __init__(self, inner: Subscription) -> None:
        super().__init__(inner._delivery)

    def close(self) -> None:
        set_tracer(None)
        super().close()


class _OtelMeter:
    def __init__(self) -> None:
        self.instruments: dict[str, Any] = {}
        self.label_names: dict[str, tuple[str, ...]] = {}

    def _attributes(self, measure: str, labels: tuple[str, ...]) -> dict[str, str]:
        return dict(zip(self.label_names[measure], labels, strict=True))

    def add(self, measure: str, labels: tuple[str, ...], amount: int) -> None:
        self.instruments[measure].add(amount, self._attributes(measure, labels))

    def record(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        self.instruments[measure].record(value, self._attributes(measure, labels))

    def set(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        self.instruments[measure].set(value, self._attributes(measure, labels))


class _Trace:
    """The spans of one acquire and its lease."""

    def __init__(self, template: str, parent: Context, acquire: Span) -> None:
        self.template = template
        self.parent = parent
        self.acquire = acquire
        self.hold: Span | None = None


class _Tracer:
    def __init__(self, tracer: Any, templates: Templates) -> None:
        self._tracer = tracer
        self._templates = templates
        self._of_session: dict[str, weakref.WeakSet[_Trace]] = {}
        """Traces of held leases; the lease itself keeps its trace alive."""

    # ── in the caller ────────────────────────────────────────────────────────────────

    def begin(self, subject: e.Subject) -> _Trace | None:
        from opentelemetry import context

        try:
            parent = context.get_current()
            template = self._templates.of(subject.name) or subject.kind
            attributes = {
                "lockfast.name": subject.name,
                "lockfast.kind": subject.kind,
                "lockfast.mode": subject.mode,
            }
            name = f"acquire {template}"
            span = self._tracer.start_span(name, context=parent, attributes=attributes)
            return _Trace(template, parent, span)
        except Exception:
            return None  # tracing must not keep anybody from acquiring

    def context(self, trace: _Trace | None) -> str:
        """Return the holder's trace context, as a W3C `traceparent`."""
        if trace is None:
            return ""
        context: SpanContext = trace.acquire.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    # ── on the observer's thread ─────────────────────────────────────────────────────

    def observe(self, event: e.Event) -> None:
        if isinstance(event, e.SessionRenewed):
            for held in list(self._of_session.get(event.session, ())):
                if held.hold is not None:
                    held.hold.add_event("renewed", timestamp=_wall_ns(event.at_us))
            return
        if isinstance(event, e.SessionEnded):
            self._of_session.pop(event.session, None)
            return
        trace = getattr(event, "trace", None)
        if not isinstance(trace, _Trace):
            return
        match event:
            case e.AcquireQueued():
                self._queued(trace, event)
            case e.AcquireGranted():
                self._granted(trace, event)
            case e.AcquireGaveUp():
                self._gave_up(trace, event)
            case e.LeaseReleased():
                self._over(trace, event, "released")
            case e.LeaseLost():
                self._over(trace, event, "lost")
            case e.LeaseUncertain():
                left = {"lockfast.left_ms": event.left_us / 1e3}
                self._note(trace, event.at_us, "uncertain", left)
            case e.LeaseConverted():
                self._note(trace, event.at_us, "converted", {"lockfast.mode": event.subject.mode})
            case e.LeaseRevoked():
                details = {"lockfast.by": event.by, "lockfast.reason": event.reason}
                self._note(trace, event.at_us, "revoked", details)

    def _queued(self, trace: _Trace, event: e.AcquireQueued) -> None:
        attributes: dict[str, Any] = {"lockfast.holders": list(event.holders)}
        if event.position is not None:
            attributes["lockfast.position"] = event.position
        trace.acquire.add_event("queued", attributes, _wall_ns(event.at_us))
        for text in event.traces:
            holder = _parsed(text)
            if holder is not None:
                trace.acquire.add_link(holder, {"lockfast.relation": "waited for"})

    def _granted(self, trace: _Trace, event: e.AcquireGranted) -> None:
        at_ns = _wall_ns(event.at_us)
        trace.acquire.set_attribute("lockfast.wait_ms", event.wait_us / 1e3)
        trace.acquire.set_attribute("lockfast.contended", event.contended)
        trace.acquire.set_attribute("lockfast.outcome", "granted")
        trace.acquire.end(at_ns)
        attributes = {
            "lockfast.name": event.subject.name,
            "lockfast.token": event.token,
            "lockfast.session": event.session,
        }
        trace.hold = self._tracer.start_span(
            f"hold {trace.template}",
            context=trace.parent,
            attributes=attributes,
            start_time=at_ns,
        )
        self._of_session.setdefault(event.session, weakref.WeakSet()).add(trace)

    def _gave_up(self, trace: _Trace, event: e.AcquireGaveUp) -> None:
        from opentelemetry.trace import StatusCode

        trace.acquire.set_attribute("lockfast.wait_ms", event.wait_us / 1e3)
        trace.acquire.set_attribute("lockfast.contended", event.contended)
        trace.acquire.set_attribute("lockfast.outcome", event.why)
        if event.why != e.GAVE_UP_BUSY:
            trace.acquire.set_status(StatusCode.ERROR, event.error or event.why)
        trace.acquire.end(_wall_ns(event.at_us))

    def _over(self, trace: _Trace, event: e.LeaseReleased | e.LeaseLost, how: str) -> None:
        from opentelemetry.trace import StatusCode

        if trace.hold is None:
            return
        at_ns = _wall_ns(event.at_us)
        trace.hold.set_attribute("lockfast.hold_ms", event.hold_us / 1e3)
        if isinstance(event, e.LeaseLost):
            details = {"lockfast.why": event.why, "lockfast.reason": event.reason}
            trace.hold.add_event(how, details, at_ns)
            trace.hold.set_status(StatusCode.ERROR, event.reason)
        trace.hold.end(at_ns)
        self._of_session.get(event.session, weakref.WeakSet()).discard(trace)

    def _note(self, trace: _Trace, at_us: int, what: str, attributes: dict[str, Any]) -> None:
        if trace.hold is not None:
            trace.hold.add_event(what, attributes, _wall_ns(at_us))


def _wall_ns(at_us: int) -> int:
    """Convert an instant of the lease clock, which counts from boot, to wall-clock time."""
    return time.time_ns() - (now_us() - at_us) * 1000


def _parsed(text: str) -> SpanContext | None:
    """Return the span context of a `traceparent`; None if it is malformed."""
    from opentelemetry.trace import SpanContext, TraceFlags

    parts = text.split("-")
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:4])
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
