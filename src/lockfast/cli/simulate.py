"""lockfast simulate: play a scenario in virtual time."""

from __future__ import annotations

import argparse
from pathlib import Path

from lockfast.cli import exit_codes
from lockfast.errors import UnsupportedError


def simulate(arguments: argparse.Namespace) -> int:
    """Print and draw what happens; return 1 if a promise was broken."""
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
        unguarded = "-no-guard" if arguments.no_guard else ""
        page = Path(f"{Path(arguments.scenario).stem}{seed}{unguarded}.html")
    try:
        return actions.simulate(
            arguments.scenario, arguments.seed, fenced=not arguments.no_guard, html=page
        )
    except (MixError, PageError) as error:
        raise exit_codes.CommandError(exit_codes.USAGE, str(error)) from None
