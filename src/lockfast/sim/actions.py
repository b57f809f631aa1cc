"""The commands of `python -m lockfast.sim`; each returns an exit code.

0: no promise was broken. 1: a promise was broken. 2: wrong usage (raised as MixError).
"""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path

from lockfast.sim.exhaust import exhaust
from lockfast.sim.history import write_history
from lockfast.sim.mix import STORES, Case, MixError, mix_of_seed, read_case_file, write_case
from lockfast.sim.scenarios import SCENARIOS, play
from lockfast.sim.search import Failure, compare_table, progress_line, search, try_seed
from lockfast.sim.shrink import shrink
from lockfast.sim.speed import lines as speed_lines
from lockfast.sim.story import tell
from lockfast.sim.timeline import write_page

FINDINGS = Path("findings")
"""Where a search writes the schedules that failed."""
SLOWER = 5
"""The default search runs a fifth of the seeds on stores that run over a modelled server."""


def simulate(what: str, seed: int | None, *, fenced: bool = True, html: Path | None = None) -> int:
    """Play a scenario, or a run described in a TOML file, and print its story."""
    logging.disable(logging.WARNING)
    if what in SCENARIOS:
        seed = 1 if seed is None else seed
        run, problems = play(what, seed, fenced=fenced)
        summary = SCENARIOS[what].summary
    elif what.endswith(".toml"):
        case = read_case_file(Path(what))
        if seed is None and case.seed is None:
            raise MixError(f"{what} has no seed; give one with --seed")
        seed = case.seed if seed is None else seed
        assert seed is not None
        run, problems = try_seed(seed, case.mix)
        summary = case.why or str(case.mix)
    else:
        raise MixError(f"there is no scenario {what!r}; there are {', '.join(SCENARIOS)}")
    title = f"{what}, seed {seed}{'' if fenced else ', without the guard'}"
    print(f"{title}: {summary}\n")
    for line in tell(run.entries, problems):
        print(line)
    if html is not None:
        write_page(html, run.entries, problems, title=title, summary=summary)
        print(f"timeline in {html}")
    return 1 if problems else 0


def search_seeds(
    first: int | None,
    count: int,
    jobs: int | None,
    findings: Path = FINDINGS,
    store: str | None = None,
) -> int:
    """Run many seeds; shrink and draw each failure, and save it with its replay command.

    Without a store, search all of them, with fewer seeds for the slower ones.
    """
    # Start at a different seed each time, so that runs do not repeat each other.
    first = first if first is not None else int(time.time()) % 10**8 * 100
    print(f"seeds {first} to {first + count - 1}", flush=True)
    stores = STORES if store is None else (store,)
    failed = False
    for each in stores:
        share = 1 if store is not None or each == "memory" else SLOWER
        failed |= _search_store(each, first, max(1, count // share), jobs, findings)
    return 1 if failed else 0


def _search_store(store: str, first: int, count: int, jobs: int | None, findings: Path) -> bool:
    began = time.monotonic()
    progress = progress_line(sys.stderr, count)
    tally = search(first, count, store=store, jobs=jobs, progress=progress)
    seconds = time.monotonic() - began
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    for number, finding in enumerate(tally.findings):
        print(f"FAILED {finding}")
        if number == 0 and finding.mixed:
            print(f"  smaller: {_leave(finding, findings)}", flush=True)
    rate = tally.schedules / seconds * 60
    print(
        f"{store}: {tally.line()}; by the clock {seconds:.1f} s, {rate:,.0f} a minute", flush=True
    )
    return bool(tally.findings)


def _leave(finding: Failure, directory: Path) -> str:
    """Save a smaller run that fails alike, and its picture; return the command to view it."""
    smaller = shrink(mix_of_seed(finding.seed, finding.store), finding.seed)
    run, problems = try_seed(smaller.seed, smaller.mix)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{finding.store}-{finding.seed}.toml"
    case = Case(smaller.mix, smaller.seed, str(problems[0]))
    path.write_text(write_case(case), encoding="utf-8")
    picture = path.with_suffix(".html")
    write_page(picture, run.entries, problems, title=path.name, summary=str(problems[0]))
    return f"lockfast simulate {shlex.quote(str(path))}  (drawn in {picture})"


def replay(
    seed: int | None,
    file: Path | None,
    *,
    store: str = "memory",
    smaller: bool,
    history: Path | None,
    trace: bool,
) -> int:
    """Run one schedule again and print what was wrong."""
    case = read_case_file(file) if file is not None else None
    if seed is None:
        seed = case.seed if case is not None else None
    if seed is None:
        raise MixError("give a --seed, or a --mix whose file has one")
    mix = case.mix if case is not None else mix_of_seed(seed, store)
    run, problems = try_seed(seed, mix)
    if problems and smaller:
        found = shrink(mix, seed)
        run, problems = try_seed(found.seed, found.mix)
        print(write_case(Case(found.mix, found.seed, str(problems[0]))))
    if trace:
        print("\n".join(run.trace))
    if history is not None:
        write_history(run.entries, history)
        print(f"history in {history}")
    print(
        f"seed {run.seed}, {run.mix}: {run.operations} operations, {run.messages} messages, "
        f"{run.ended_us / 1e6:.3f} s of virtual time\ntrace {run.trace_hash()}"
    )
    for problem in problems:
        print(f"FAILED {problem}")
    return 1 if problems else 0


def compare(seed: int) -> int:
    """Compare the lock table with its model on the random commands of one seed."""
    finding = compare_table(seed)
    print(
        finding.problems[0].text if finding is not None else f"seed {seed}: table and model agree"
    )
    return 1 if finding is not None else 0


def speed() -> int:
    """Measure how fast the checkers and the search are on this machine."""
    logging.disable(logging.WARNING)
    for line in speed_lines():
        print(line, flush=True)
    return 0


def exhaust_states(states: int) -> int:
    """Explore every interleaving of a small world, up to a number of states."""
    shown = [time.monotonic()]

    def progress(found: int) -> None:
        if time.monotonic() - shown[0] > 10:
            shown[0] = time.monotonic()
            print(f"{found:,} states", file=sys.stderr, flush=True)

    result = exhaust(states, progress)
    print(result)
    return 1 if result.problem else 0
