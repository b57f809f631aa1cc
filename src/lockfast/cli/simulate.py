"""simulate: play a scenario in virtual time. check: judge a recorded history."""

from __future__ import annotations

import argparse
from pathlib import Path

from lockfast.cli import codes
from lockfast.cli.documents import write_json
from lockfast.errors import UnsupportedError


def simulate(arguments: argparse.Namespace) -> int:
    """Tell what happens, and draw it; exit code 1 if a promise was broken."""
    try:
        import asimpy  # noqa: F401
    except ImportError:
        raise UnsupportedError(
            "lockfast simulate",
            "the package asimpy is not installed",
            "pip install 'lockfast[sim]'",
        ) from None
    from lockfast.sim import actions
    from lockfast.sim.mix import MixError
    from lockfast.sim.timeline import PageError

    page: Path | None = arguments.html
    if page is None and not arguments.no_html:
        seed = "" if arguments.seed is None else f"-{arguments.seed}"
        page = Path(f"{Path(arguments.scenario).stem}{seed}.html")
    try:
        return actions.simulate(
            arguments.scenario, arguments.seed, fenced=not arguments.no_guard, html=page
        )
    except (MixError, PageError) as error:
        raise codes.Complaint(codes.USAGE, str(error)) from None


def check(arguments: argparse.Namespace) -> int:
    """Say which promises a history breaks; exit code 1 if there are any."""
    from lockfast.sim.judge import HistoryError, judge_file

    try:
        judgement = judge_file(arguments.history, forgets=arguments.forgets)
    except HistoryError as error:
        raise codes.Complaint(codes.USAGE, str(error)) from None
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
            print(line)
    if arguments.html is not None:
        from lockfast.sim.timeline import PageError, write_page

        title = Path(arguments.history).name
        try:
            write_page(arguments.html, judgement.entries, judgement.problems, title=title)
        except PageError as error:
            raise codes.Complaint(codes.USAGE, str(error)) from None
    return judgement.code
