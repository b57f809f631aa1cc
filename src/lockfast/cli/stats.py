"""lockfast stats: health figures of a whole store, from its event log.

Another process cannot read the figures that a client keeps in memory (`client.stats()`). But
it can read the store's event log, which covers the clients of all processes. The log is bounded,
and some stores write it only while it is being read, so this command also watches it for a while.
It cannot see a `try_acquire` that found the lock taken, refused tokens, or the time of requests:
an uncontended acquire counts as 0 s.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

from lockfast.api.blocking import Client, Watch
from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import table, terminal_width, write_line, write_note
from lockfast.cli.json_output import write_json
from lockfast.errors import WatchGapError
from lockfast.telemetry.spans import SpanBuilder, collect
from lockfast.telemetry.stats import WINDOWS, Collector, Figures, Stats


def stats(arguments: argparse.Namespace) -> int:
    with open_client(arguments, program_label("lockfast")) as client:
        after = oldest_position(client)  # raises if the store keeps no log
        if not arguments.json:
            write_note(f"watching for {arguments.watch_for:g} s …")
        collector, first_at = watch_log(client, arguments.prefix, arguments.watch_for, after)
    found = collector.stats(int(time.time() * 1e6))
    if first_at is not None:
        found = found._replace(since=time.time() - first_at)
    if arguments.json:
        write_json(stats_as_json(found))
    else:
        _print(found)
    return exit_codes.OK


def watch_log(
    client: Client, prefix: str, seconds: float, after: int
) -> tuple[Collector, float | None]:
    """Count the events that the log still has `after` a position, and those of the next `seconds`.

    Return the figures and the time of the oldest event.
    """
    collector, builder = Collector(), SpanBuilder()
    first_at = None
    events = client.watch(prefix, kind=None, after=after)
    timer = threading.Timer(seconds, events.close)
    timer.start()
    try:
        while True:
            try:
                for event in events:
                    first_at = event.at if first_at is None else first_at
                    collect(collector, builder, event)
                return collector, first_at
            except WatchGapError:
                continue  # the log outran us; the same watch continues behind the gap
    finally:
        timer.cancel()
        events.close()


def oldest_position(client: Client) -> int:
    """Return the position after which the log is still complete."""
    events: Watch = client.watch(kind=None, after=0)
    ending = threading.Timer(0.05, events.close)
    ending.start()
    try:
        next(events, None)
        return 0
    except WatchGapError as gap:
        return max(0, gap.oldest - 1)
    finally:
        ending.cancel()
        events.close()


def stats_as_json(found: Stats) -> dict[str, Any]:
    def plain(by_window: dict[str, Figures]) -> dict[str, Any]:
        return {
            window: {
                **figures._asdict(),
                "acquisition": figures.acquisition._asdict(),
                "hold": figures.hold._asdict(),
                "contention_rate": figures.contention_rate,
                "timeout_rate": figures.timeout_rate,
            }
            for window, figures in by_window.items()
        }

    return {
        "since": found.since,
        "overall": plain(found.overall),
        "by_prefix": {prefix: plain(each) for prefix, each in found.by_prefix.items()},
    }


HEADER = [
    "NAMES", "WINDOW", "ACQUIRES", "CONTENDED", "TIMED OUT", "LOST", "DEADLOCKS",
    "WAIT P50", "P95", "P99", "HOLD P50", "P95", "P99",
]  # fmt: skip


def _print(found: Stats) -> None:
    rows = []
    for prefix, by_window in {"(all)": found.overall, **found.by_prefix}.items():
        for window in WINDOWS:
            figures = by_window[window.name]
            if figures.acquires or figures.hold.count:
                rows.append([prefix, window.name, *_cells(figures)])
    if not rows:
        write_note("no acquire in the store's log; watch longer with --for")
        return
    for line in table(HEADER, rows, terminal_width()):
        write_line(line)
    write_note(f"\nfrom the events of the last {found.since:.0f} s; percentiles are within 5 %")


def _cells(figures: Figures) -> list[str]:
    wait, hold = figures.acquisition, figures.hold
    return [
        str(figures.acquires),
        f"{figures.contention_rate:.0%}",
        f"{figures.timeout_rate:.0%}",
        str(figures.lost),
        str(figures.deadlocks),
        *(_span(each) for each in (wait.p50, wait.p95, wait.p99, hold.p50, hold.p95, hold.p99)),
    ]


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
