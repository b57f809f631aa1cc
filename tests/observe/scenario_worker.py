"""One process of the scenario: executes commands from standard input, and reports its figures."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import lockfast
from lockfast import events, metrics, otel
from lockfast.guards import SqliteGuard


class Worker:
    def __init__(self, url: str, owner: str, database: str) -> None:
        self._registry = CollectorRegistry()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._subscriptions = [metrics.enable(self._registry), otel.enable(provider)]
        self._client = lockfast.connect(
            url, owner=owner, ttl=4, deadlock_after=0.2, connect_timeout=30
        )
        self._queued = threading.Event()
        self._subscriptions.append(lockfast.observe(self._note))
        self._database = database
        self._leases: dict[str, Any] = {}
        self._waiting: dict[str, threading.Thread] = {}

    def acquire(self, name: str, ttl: float | None = None) -> int:
        self._leases[name] = self._client.lock(name, ttl=ttl).acquire(timeout=60)
        return int(self._leases[name].token)

    def begin(self, name: str) -> None:
        """Acquire in a thread: `end` waits for it."""
        thread = threading.Thread(target=self.acquire, args=(name,))
        thread.start()
        self._waiting[name] = thread

    def until_queued(self) -> None:
        """Wait until an acquire has been reported as queued."""
        assert self._queued.wait(60)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.AcquireQueued):
            self._queued.set()

    def end(self, name: str) -> int:
        self._waiting.pop(name).join()
        return int(self._leases[name].token)

    def release(self, name: str) -> str:
        try:
            self._leases.pop(name).release()
        except lockfast.LeaseLostError:
            return "lost"
        return "released"

    def try_once(self, name: str) -> bool:
        lease = self._client.lock(name).try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    def cross(self, first: str, second: str) -> str:
        """Acquire the second lock while holding the first; report the outcome."""
        try:
            self._client.lock(second).acquire(timeout=60).release()
        except lockfast.DeadlockError:
            return "deadlock"
        return "granted"

    def write(self, resource: str, token: int) -> str:
        import sqlite3

        connection = sqlite3.connect(self._database)
        try:
            with connection:
                SqliteGuard(connection).admit(resource, token)
        except lockfast.StaleTokenError:
            return "refused"
        finally:
            connection.close()
        return "admitted"

    def renewals(self, outcome: str) -> float:
        labels = {"store": "redis", "outcome": outcome}
        return self._registry.get_sample_value("lockfast_renew_total", labels) or 0.0

    def figures(self) -> dict[str, Any]:
        for subscription in self._subscriptions:
            subscription.flush(10)
        return {
            "metrics": generate_latest(self._registry).decode(),
            "spans": [
                {
                    "name": span.name,
                    "trace": f"{span.context.trace_id:032x}" if span.context else "",
                    "attributes": dict(span.attributes or {}),
                    "links": [f"{link.context.trace_id:032x}" for link in span.links],
                    "events": [event.name for event in span.events],
                }
                for span in self._exporter.get_finished_spans()
            ],
        }

    def close(self) -> None:
        self._client.close()


def main() -> None:
    worker = Worker(*sys.argv[1:4])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, what)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
