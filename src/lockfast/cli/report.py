"""lockfast report: one HTML page about what happened to the locks."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import write_note
from lockfast.cli.stats import oldest_position
from lockfast.core.wording import counted
from lockfast.errors import WatchGapError
from lockfast.flow.admin import WatchEvent
from lockfast.telemetry.report import report_page
from lockfast.telemetry.spans import EventFileError, Span, read_events, spans_of


def report(arguments: argparse.Namespace) -> int:
    """Write the page; the events come from a file or from the store's log."""
    source: Path | None = arguments.source
    if source is None:
        spans, about = _from_store(arguments)
        title = "Locks"
    else:
        spans, about = _from_file(source), f"From {source.name}"
        title = f"Locks in {source.name}"
    page = report_page(spans, title=title, source=about)
    try:
        arguments.html.write_text(page, encoding="utf-8")
    except OSError as error:
        message = f"{arguments.html} cannot be written: {error.strerror}"
        raise exit_codes.CommandError(exit_codes.USAGE, message) from None
    write_note(f"wrote {arguments.html}: {counted(len(spans), 'claim')}")
    return exit_codes.OK


def _from_store(arguments: argparse.Namespace) -> tuple[list[Span], str]:
    found: list[WatchEvent] = []
    with open_client(arguments, program_label("lockfast")) as client:
        label = client.url
        events = client.watch(arguments.prefix, kind=None, after=oldest_position(client))
        timer = threading.Timer(arguments.watch_for, events.close)
        timer.start()
        try:
            while not found or not timer.finished.is_set():
                try:
                    found += events
                    break
                except WatchGapError:
                    continue
        finally:
            timer.cancel()
            events.close()
    return spans_of(found), f"From the log of {label}"


def _from_file(source: Path) -> list[Span]:
    """Read a recorded history or the output of `lockfast watch --json`."""
    try:
        return spans_of(read_events(source))
    except EventFileError as not_events:
        from lockfast.sim.entries import HistoryError
        from lockfast.sim.history import read_history

        try:
            entries = list(read_history(source))
        except HistoryError:
            raise exit_codes.CommandError(exit_codes.USAGE, str(not_events)) from None
        return _spans_of_history(entries)


def _spans_of_history(entries: list[dict[str, object]]) -> list[Span]:
    from operator import itemgetter

    from lockfast.sim.checker import FAR, grants_of

    spans = []
    for grant in grants_of(sorted(entries, key=itemgetter("at"))):
        for place in grant.places:
            span = Span(place.kind, place.name, place.mode, grant.by, grant.token or None)
            contended = grant.queued is not None
            span.asked = grant.asked / 1e6 if contended or not grant.granted else None
            answered = grant.answered / 1e6 if grant.answered is not None else None
            if grant.granted:
                span.granted = answered
                span.ended = grant.over / 1e6 if grant.over < FAR else None
                lost = bool(grant.why) and grant.why != "released"
                span.how = "expired" if lost else "released" if span.ended else ""
                span.detail = grant.why if lost else ""
            else:
                span.ended = answered
                span.how, span.detail = "gave_up", grant.outcome
            spans.append(span)
    return spans
