"""lockfast schema: print the SQL that a store or guard needs in a database."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes


def schema(arguments: argparse.Namespace) -> int:
    """Print SQL to be reviewed and run by the owner of the database."""
    from lockfast.stores.postgresql import schema as postgresql

    make = postgresql.guards if arguments.guards else postgresql.creation
    print("BEGIN;")
    print(make(arguments.schema))
    print("COMMIT;")
    return exit_codes.OK
