"""`python -m lockfast.sim`: search for schedules that break a promise, and replay them."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from lockfast.sim.checker import check_history
from lockfast.sim.history import read_history, write_history
from lockfast.sim.linear import explain
from lockfast.sim.mix import MixError, mix_of_seed, read_mix_file, write_mix
from lockfast.sim.scenarios import SCENARIOS, play
from lockfast.sim.search import Tally, compare_table, progress_line, search, try_seed
from lockfast.sim.story import tell
from lockfast.sim.timeline import page

SEEDS = 2000


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when nothing was found, 1 when a promise was broken, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m lockfast.sim", description=__doc__)
    _search_options(parser)
    actions = parser.add_subparsers(dest="action")
    _search_options(actions.add_parser("search", help="run many seeds (the default)"))
    replay = actions.add_parser("replay", help="run one seed again and show what happened")
    replay.add_argument("--seed", type=int, required=True)
    replay.add_argument("--mix", type=Path, help="a TOML file; without it the seed decides")
    replay.add_argument("--history", type=Path, help="write the history here, as JSON lines")
    replay.add_argument("--shrink", action="store_true", help="look for a smaller mix that fails")
    replay.add_argument("--trace", action="store_true", help="print what the store did")
    table = actions.add_parser("table", help="compare the table with its model for one seed")
    table.add_argument("--seed", type=int, required=True)
    mix = actions.add_parser("mix", help="print the mix that a seed stands for, as TOML")
    mix.add_argument("--seed", type=int, required=True)
    story = actions.add_parser("story", help="play a scenario and tell what happened")
    story.add_argument("scenario", choices=list(SCENARIOS))
    story.add_argument("--seed", type=int, default=1)
    story.add_argument("--no-guard", action="store_true", help="let every write through")
    story.add_argument("--html", type=Path, help="write a page with a timeline here")
    check = actions.add_parser("check", help="judge a recorded history")
    check.add_argument("history", type=Path)
    check.add_argument("--forgets", action="store_true", help="its store may lose what it promised")
    all_states = actions.add_parser("exhaust", help="every interleaving of a small world")
    all_states.add_argument("--states", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    try:
        if options.action == "replay":
            return _replay(options)
        if options.action == "table":
            return _table(options.seed)
        if options.action == "mix":
            sys.stdout.write(write_mix(mix_of_seed(options.seed)))
            return 0
        if options.action == "exhaust":
            return _exhaust(options.states)
        if options.action == "story":
            return simulate(
                options.scenario, options.seed, fenced=not options.no_guard, html=options.html
            )
        if options.action == "check":
            return check_file(options.history, forgets=options.forgets)
    except MixError as error:
        print(f"lockfast.sim: {error}", file=sys.stderr)
        return 2
    return _search(options)


def _search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--first", type=int, default=None, help="the first; default: by the clock")
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: all cores)")


def _search(options: argparse.Namespace) -> int:
    # Another stretch each time: what was searched yesterday need not be searched again.
    first = options.first if options.first is not None else int(time.time()) % 10**8 * 100
    print(f"seeds {first} to {first + options.seeds - 1}", flush=True)
    began = time.monotonic()
    tally = search(
        first,
        options.seeds,
        jobs=options.jobs,
        progress=progress_line(sys.stderr, options.seeds),
    )
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    _report(tally, time.monotonic() - began)
    return 1 if tally.findings else 0


def _report(tally: Tally, seconds: float) -> None:
    for finding in tally.findings:
        print(f"FAILED {finding}")
    print(f"{tally.line()}, {seconds:.1f} s")


def _replay(options: argparse.Namespace) -> int:
    mix = read_mix_file(options.mix) if options.mix is not None else mix_of_seed(options.seed)
    run, problems = try_seed(options.seed, mix)
    if problems and options.shrink:
        from lockfast.sim.shrink import shrink

        smaller = shrink(mix, options.seed)
        run, problems = try_seed(smaller.seed, smaller.mix)
        print(f"# smaller, with seed {smaller.seed}:\n{write_mix(smaller.mix)}")
    if options.trace:
        print("\n".join(run.trace))
    if options.history is not None:
        write_history(run.entries, options.history)
        print(f"history in {options.history}")
    print(
        f"seed {run.seed}, {run.mix}: {run.operations} operations, {run.messages} messages, "
        f"{run.ended_us / 1e6:.3f} s of virtual time\ntrace {run.trace_hash()}"
    )
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if problems else 0


def simulate(name: str, seed: int, *, fenced: bool = True, html: Path | None = None) -> int:
    """Play a scenario and tell it; exit code 1 when a promise was broken."""
    logging.disable(logging.WARNING)
    run, problems = play(name, seed, fenced=fenced)
    summary = SCENARIOS[name].summary
    print(f"{name}, seed {seed}{'' if fenced else ', without the guard'}: {summary}\n")
    for line in tell(run.entries, problems):
        print(line)
    if html is not None:
        title = f"{name}, seed {seed}" + ("" if fenced else ", without the guard")
        html.write_text(page(run.entries, problems, title=title, summary=summary), "utf-8")
        print(f"timeline in {html}")
    return 1 if problems else 0


def check_file(path: Path, *, forgets: bool = False) -> int:
    """Judge a recorded history; exit code 1 when a promise was broken, 2 if it is none."""
    try:
        entries = sorted(read_history(path), key=lambda entry: int(entry["at"]))
        problems = check_history(entries, forgets=forgets)
    except (OSError, ValueError) as error:
        print(f"lockfast: {error}", file=sys.stderr)
        return 2
    if not forgets:
        problems += explain(entries)
    for problem in problems:
        print(f"FAILED {problem}")
    asked = sum("ask" in entry for entry in entries)
    print(f"{asked} operations, {len(problems)} promises broken")
    return 1 if problems else 0


def _table(seed: int) -> int:
    finding = compare_table(seed)
    print(finding.problems[0] if finding is not None else f"seed {seed}: table and model agree")
    return 1 if finding is not None else 0


def _exhaust(states: int) -> int:
    from lockfast.sim.exhaust import exhaust

    result = exhaust(states)
    print(result)
    return 1 if result.problem else 0


if __name__ == "__main__":
    sys.exit(main())
