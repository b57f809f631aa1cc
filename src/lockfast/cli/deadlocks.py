"""deadlocks: who waits for each other for ever."""

from __future__ import annotations

import argparse

from lockfast.cli import codes
from lockfast.cli.client import open_client, program_label
from lockfast.cli.documents import write_json
from lockfast.cli.text import printable


def deadlocks(arguments: argparse.Namespace) -> int:
    """Every deadlock in the store; the exit code says whether there is one."""
    with open_client(arguments, program_label("lockfast")) as client:
        found = client.deadlocks()
    if arguments.json:
        write_json([each._asdict() for each in found])
    elif not found:
        print("there are no deadlocks")
    for number, each in enumerate(() if arguments.json else found, 1):
        print(f"deadlock {number}, of {len(each.actors)}:")
        for line in each.lines:
            print(f"  {printable(line)}")
        print(
            f"  to be given up: claim {each.victim_n} of session {each.victim_session} "
            f"({printable(each.victim_owner)})"
        )
    return codes.NO if found else codes.OK
