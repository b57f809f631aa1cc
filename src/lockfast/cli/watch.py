"""lockfast watch: print the events of locks until interrupted."""

from __future__ import annotations

import argparse
import select
import signal
import sys
import threading
from typing import Any

from lockfast.api.blocking import Watch
from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import local_time_ms, terminal_width, write_line, write_note
from lockfast.cli.json_output import lock_as_json, write_json
from lockfast.cli.ls import lock_lines
from lockfast.cli.signals import interrupt_on
from lockfast.core.modes import LOCK, SEMAPHORE
from lockfast.errors import WatchGapError
from lockfast.flow.admin import WatchEvent


def watch(arguments: argparse.Namespace) -> int:
    """Print events until interrupted or until the reader of our output is gone."""
    interrupt_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with open_client(arguments, program_label("lockfast")) as client:
        events = client.watch(arguments.prefix, kind=arguments.kind, after=arguments.after)
        _close_with_reader(events)
        try:
            while True:
                try:
                    for event in events:
                        _print_event(event, arguments.json)
                    return exit_codes.BY_SIGNAL + signal.SIGPIPE
                except WatchGapError as gap:
                    _print_gap(gap, arguments.json)
                    # The same watch continues from gap.resume_at.
        finally:
            if events.position is not None and sys.stderr.isatty():
                write_note(f"\nto continue from here, add --after {events.position}")


def _close_with_reader(events: Watch) -> None:
    """End the watch when our output is closed: without events, no write would notice it."""

    def wait() -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors and hang-ups only
        poll.poll()
        events.close()

    threading.Thread(target=wait, daemon=True).start()


def _print_event(event: WatchEvent, as_json: bool) -> None:
    if as_json:
        write_json(event._asdict())
        return
    kind = f"{event.kind} " if event.kind != LOCK else ""
    has_token = event.token is not None and event.kind != SEMAPHORE
    token = f"  token {event.token}" if has_token else ""
    detail = f"  {event.detail}" if event.detail else ""
    write_line(
        f"{local_time_ms(event.at)}  {event.what:<10}  {kind}{event.name}  {event.owner}"
        f"{token}{detail}",
        flush=True,
    )


def _print_gap(gap: WatchGapError, as_json: bool) -> None:
    if as_json:
        line: dict[str, Any] = {
            "what": "gap",
            "position": gap.resume_at,
            "after": gap.position,
            "oldest": gap.oldest,
            "locks": [lock_as_json(lock) for lock in gap.snapshot],
        }
        write_json(line)
        return
    write_line(
        f"-- events after position {gap.position} are no longer kept (the oldest is "
        f"{gap.oldest}); the locks as of position {gap.resume_at}:"
    )
    lines = lock_lines(gap.snapshot, terminal_width()) if gap.snapshot else ("(none in use)",)
    for line_of_table in lines:
        write_line(f"   {line_of_table}")
    write_line("-- events from here on:", flush=True)
