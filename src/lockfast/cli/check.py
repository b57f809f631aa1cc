"""lockfast check: judge a history that clients recorded."""

from __future__ import annotations

import argparse

from lockfast.cli import exit_codes
from lockfast.cli.formatting import write_line
from lockfast.cli.json_output import write_json


def check(arguments: argparse.Namespace) -> int:
    """Print which promises a history breaks; return 1 if there are any."""
    from lockfast.sim.entries import HistoryError
    from lockfast.sim.judge import judge_file

    try:
        judgement = judge_file(arguments.history, forgets=arguments.forgets)
    except HistoryError as error:
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    if arguments.json:
        write_json(
            {
                "operations": judgement.operations,
                "problems": [problem._asdict() for problem in judgement.problems],
                "undecided": judgement.undecided,
            }
        )
    else:
        for line in judgement.lines():
            write_line(line)
    if arguments.html is not None:
        from lockfast.sim.timeline import PageError, write_page

        title = arguments.history.name
        try:
            write_page(arguments.html, judgement.entries, judgement.problems, title=title)
        except PageError as error:
            raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
    return judgement.code
