"""watch: what happens to locks, line by line, for as long as somebody reads."""

from __future__ import annotations

import argparse
import select
import signal
import sys
import threading
from typing import Any

from lockfast.api.blocking import Watch
from lockfast.cli import codes
from lockfast.cli.client import open_client, program_label
from lockfast.cli.documents import lock_as_json, write_json
from lockfast.cli.look import lock_lines
from lockfast.cli.signals import interrupt_on
from lockfast.cli.text import instant_ms, printable
from lockfast.core.modes import LOCK
from lockfast.errors import WatchGapError
from lockfast.flow.admin import WatchEvent


def watch(arguments: argparse.Namespace) -> int:
    """Print events until interrupted, or until nobody reads them any more."""
    interrupt_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with open_client(arguments, program_label("lockfast")) as client:
        events = client.watch(arguments.prefix, kind=arguments.kind, after=arguments.after)
        _close_with_reader(events)
        try:
            while True:
                try:
                    for event in events:
                        _print_event(event, arguments.json)
                    return codes.BY_SIGNAL + signal.SIGPIPE
                except WatchGapError as gap:
                    _print_gap(gap, arguments.json)
                    # The same watch goes on: its position is gap.resume_at now.
        finally:
            if events.position is not None and sys.stderr.isatty():
                print(f"\ngo on with: --after {events.position}", file=sys.stderr)


def _close_with_reader(events: Watch) -> None:
    """End the watch when whoever reads our output is gone: a quiet store never tells us."""

    def wait() -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # only that the other end was closed
        poll.poll()
        events.close()

    threading.Thread(target=wait, daemon=True).start()


def _print_event(event: WatchEvent, as_json: bool) -> None:
    if as_json:
        write_json(event._asdict())
        return
    kind = f"{event.kind} " if event.kind != LOCK else ""
    token = f"  token {event.token}" if event.token is not None else ""
    detail = f"  {printable(event.detail)}" if event.detail else ""
    print(
        f"{instant_ms(event.at)}  {event.what:<10}  {kind}{printable(event.name)}"
        f"  {printable(event.owner)}{token}{detail}",
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
    print(
        f"-- events after position {gap.position} are no longer kept (the oldest is "
        f"{gap.oldest}); the locks as they are now, at position {gap.resume_at}:"
    )
    for line_of_table in lock_lines(gap.snapshot) if gap.snapshot else ("(none in use)",):
        print(f"   {line_of_table}")
    print("-- and what happens from here on:", flush=True)
