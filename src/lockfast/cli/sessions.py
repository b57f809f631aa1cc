"""lockfast sessions: the clients of a store."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import (
    WIDE,
    duration,
    table,
    terminal_width,
    use_colour,
    without_columns,
    write_line,
    write_note,
)
from lockfast.cli.json_output import write_json
from lockfast.flow.admin import SessionInfo


def sessions(arguments: argparse.Namespace) -> int:
    with open_client(arguments, program_label("lockfast")) as client:
        found = [each for each in client.sessions() if arguments.all or not each.ended]
        store = client._core.store.label
    if arguments.json:
        write_json([each._asdict() for each in found])
    elif found:
        header = ["SESSION", "OWNER", "CLAIMS", "TTL", "ENDS IN", "RENEWALS", "STATE"]
        rows = [_session_row(each) for each in found]
        if any(each.metadata for each in found):
            header.append("METADATA")
            for row, each in zip(rows, found, strict=True):
                row.append(each.metadata or "-")
        width = terminal_width()
        if width is not None and width < WIDE:
            header, rows = without_columns(header, rows, "RENEWALS")
        for line in table(header, rows, width, colour=use_colour()):
            write_line(line)
    else:
        write_note(f"there are no sessions in {store}")
    return exit_codes.OK


def _session_row(session: SessionInfo) -> list[str]:
    if session.ended:
        ends, state = "-", f"ended: {session.ended}"
        if session.by:
            state += f" (by {session.by})"
    else:
        ends, state = duration(session.remaining), "alive"
    return [
        session.session,
        session.owner,
        str(session.claims),
        duration(session.ttl),
        ends,
        str(session.renewals),
        state,
    ]
