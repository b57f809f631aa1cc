"""lockfast deadlocks: every cycle of claims that wait for each other."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.connection import open_client, program_label
from lockfast.cli.formatting import write_line
from lockfast.cli.json_output import write_json
from lockfast.flow.wait_graph import WaitGraph
from lockfast.telemetry.graphs import FORMATS


def deadlocks(arguments: argparse.Namespace) -> int:
    """Print every deadlock in the store; the exit code tells whether there is one."""
    with open_client(arguments, program_label("lockfast")) as client:
        if arguments.graph is not None:
            return _print_graph(client.wait_graph(), arguments.graph)
        found = client.deadlocks()
    if arguments.json:
        write_json([each._asdict() for each in found])
    elif not found:
        write_line("there are no deadlocks")
    for number, each in enumerate(() if arguments.json else found, 1):
        write_line(f"deadlock {number}, {len(each.actors)} actors:")
        for line in each.lines:
            write_line(f"  {line}")
        write_line(
            f"  the victim will be claim {each.victim_n} of session {each.victim_session} "
            f"({each.victim_owner})"
        )
    return exit_codes.NO if found else exit_codes.OK


def _print_graph(graph: WaitGraph, form: str) -> int:
    """Print the wait graph; the exit code tells whether it contains a deadlock."""
    if form == "text" and not graph.edges:
        write_line("nobody waits")
    else:
        for line in FORMATS[form](graph).splitlines():
            write_line(line)
    return exit_codes.NO if any(edge.deadlocked for edge in graph.edges) else exit_codes.OK
