"""lockfast top: locks, queues, events and sessions, live."""

from __future__ import annotations

import argparse
import sys

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, person_label


def top(arguments: argparse.Namespace) -> int:
    """Show the live view until the user quits."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise exit_codes.CommandError(
            exit_codes.USAGE, "top needs a terminal; use `lockfast ls` or `lockfast watch --json`"
        )
    try:
        from lockfast.cli.live.app import TopApp
    except ImportError as error:
        raise exit_codes.CommandError(
            exit_codes.USAGE, f"top needs textual ({error}); pip install 'lockfast[cli]'"
        ) from None
    with open_client(arguments, person_label()) as client:
        TopApp(client, arguments.prefix, arguments.every).run()
    return exit_codes.OK
