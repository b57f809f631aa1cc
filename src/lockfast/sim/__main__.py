"""`python -m lockfast.sim`: search for schedules that break a promise, and replay them.

To see a scenario, `lockfast simulate`; to judge a recorded history, `lockfast check`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lockfast.sim import actions
from lockfast.sim.mix import STORES, MixError, mix_of_seed, write_mix

SEEDS = 2000


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when nothing was found, 1 when a promise was broken, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments = ["search", *arguments]
    options = _parser().parse_args(arguments)
    try:
        return _act(options)
    except MixError as error:
        print(f"lockfast.sim: {error}", file=sys.stderr)
        return 2


def _act(options: argparse.Namespace) -> int:
    if options.action == "replay":
        return actions.replay(
            options.seed,
            options.mix,
            store=options.store,
            smaller=options.shrink,
            history=options.history,
            trace=options.trace,
        )
    if options.action == "table":
        return actions.compare(options.seed)
    if options.action == "mix":
        sys.stdout.write(write_mix(mix_of_seed(options.seed, options.store)))
        return 0
    if options.action == "exhaust":
        return actions.exhaust_states(options.states)
    if options.action == "speed":
        return actions.speed()
    return actions.search_seeds(
        options.first, options.seeds, options.jobs, options.findings, options.store
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lockfast.sim",
        description=__doc__,
        epilog="Without an action, search: --store etcd is short for search --store etcd.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    _search_options(actions.add_parser("search", help="run many seeds (the default)"))
    replay = actions.add_parser("replay", help="run one seed again and show what happened")
    replay.add_argument("--seed", type=int, help="default: that of the file")
    replay.add_argument("--mix", type=Path, help="a TOML file; without it the seed decides")
    replay.add_argument("--store", choices=STORES, default="memory")
    replay.add_argument("--history", type=Path, help="write the history here, as JSON lines")
    replay.add_argument("--shrink", action="store_true", help="look for a smaller mix that fails")
    replay.add_argument("--trace", action="store_true", help="print what the store did")
    table = actions.add_parser("table", help="compare the table with its model for one seed")
    table.add_argument("--seed", type=int, required=True)
    mix = actions.add_parser("mix", help="print the mix that a seed stands for, as TOML")
    mix.add_argument("--seed", type=int, required=True)
    mix.add_argument("--store", choices=STORES, default="memory")
    all_states = actions.add_parser("exhaust", help="every interleaving of a small world")
    all_states.add_argument("--states", type=int, default=1_000_000)
    actions.add_parser("speed", help="how fast the checkers and the search are")
    return parser


def _search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--first", type=int, default=None, help="the first; default: by the clock")
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: all cores)")
    parser.add_argument("--store", choices=STORES, default=None, help="default: each of them")
    parser.add_argument(
        "--findings", type=Path, default=actions.FINDINGS, help="where failures are left"
    )


if __name__ == "__main__":
    sys.exit(main())
