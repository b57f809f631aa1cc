"""`lockfast playground`: locks, faults and fencing made visible."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.serve import check_packages


def playground(arguments: argparse.Namespace) -> int:
    check_packages("the playground")
    from lockfast.playground.running import play
    from lockfast.server.listening import parse_place

    try:
        place = parse_place(arguments.listen)
    except ValueError as error:
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    play(place, arguments.workers, open_browser=arguments.open)
    return exit_codes.OK
