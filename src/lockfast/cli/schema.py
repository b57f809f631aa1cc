"""lockfast schema: print the SQL that a store or guard needs in a database."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.formatting import write_line


def schema(arguments: argparse.Namespace) -> int:
    """Print SQL to be reviewed and run by the owner of the database."""
    from lockfast.stores.postgresql import schema as postgresql

    make = postgresql.guards if arguments.guards else postgresql.creation
    for line in ("BEGIN;", *make(arguments.schema).splitlines(), "COMMIT;"):
        write_line(line)
    return exit_codes.OK
