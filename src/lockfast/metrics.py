"""Prometheus metrics of all clients and guards of this process; needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lockfast.api.observing import Subscription, observe
from lockfast.errors import StoreMisconfiguredError
from lockfast.telemetry.measures import COUNTER, HISTOGRAM, MEASURES, Recorder, labels_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["enable"]


def enable(
    registry: CollectorRegistry | None = None, *, lock_names: Iterable[str] = ()
) -> Subscription:
    """Export the metrics of all clients and guards of this process to `registry`.

    `registry` defaults to that of prometheus-client. Lock names are not exported, because each
    would be a new time series. `lock_names` lists those that get a label `lock` nevertheless:
    names, or templates such as `orders/{id}`, which export the template itself.

    In multiprocess mode (`PROMETHEUS_MULTIPROC_DIR`) enable it in each worker process, after
    the fork or before it. Close the subscription to stop; the metrics stay in the registry.

    Raises ValueError if the registry already has them: enable it once per registry.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise StoreMisconfiguredError(
            "lockfast.metrics", "prometheus-client is missing", "pip install 'lockfast[metrics]'"
        ) from error
    into = prometheus_client.REGISTRY if registry is None else registry
    meter = _PrometheusMeter()
    recorder = Recorder(meter, lock_names)
    for measure in MEASURES:
        labels = labels_of(measure, recorder.templates)
        name, about = measure.name, measure.about
        if measure.kind == COUNTER:
            meter.counters[name] = prometheus_client.Counter(name, about, labels, registry=into)
        elif measure.kind == HISTOGRAM:
            meter.histograms[name] = prometheus_client.Histogram(
                name, about, labels, buckets=measure.buckets, registry=into
            )
        else:
            meter.gauges[name] = prometheus_client.Gauge(
                name,
                about,
                labels,
                registry=into,
                multiprocess_mode=measure.across_processes,  # type: ignore[arg-type]
            )
    return observe(recorder)


class _PrometheusMeter:
    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}
        self.gauges: dict[str, Gauge] = {}

    def add(self, measure: str, labels: tuple[str, ...], amount: int) -> None:
        self.counters[measure].labels(*labels).inc(amount)

    def record(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        self.histograms[measure].labels(*labels).observe(value)

    def set(self, measure: str, labels: tuple[str, ...], value: float) -> None:
        self.gauges[measure].labels(*labels).set(value)
