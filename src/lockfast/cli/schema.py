"""lockfast schema: print the SQL that a store or guard needs in a database."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.exit_codes import CommandError
from lockfast.cli.formatting import write_line


def schema(arguments: argparse.Namespace) -> int:
    """Print the SQL that the owner of the database should review and run."""
    from lockfast.stores.postgresql import schema as postgresql

    if arguments.since not in range(postgresql.VERSION):
        raise CommandError(
            exit_codes.USAGE, f"--since {arguments.since}: write 0 to {postgresql.VERSION - 1}"
        )
    if arguments.guards:
        sql = postgresql.guards(arguments.schema)
    else:
        sql = postgresql.creation(arguments.schema, arguments.since)
    for line in ("BEGIN;", *sql.splitlines(), "COMMIT;"):
        write_line(line)
    return exit_codes.OK
