"""The command `./dev chaos`: break real servers under real workers, and judge the outcome."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos import shim
from chaos.case import Case, Plan, Result
from chaos.docs import write_docs
from chaos.faults import FAULTS, MIX, possible
from chaos.report import HEADER, LEGEND, Page, row
from chaos.soak import soak
from chaos.targets import TARGETS, Target
from lockfast.sim.history import write_history

FINDINGS: Final = Path("findings")


def main() -> int:
    """Return 0 if all promises were kept, 1 if one was broken, 2 for wrong usage."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.list:
        _list()
        return 0
    if arguments.soak and len(arguments.store) != 1:
        parser.error("--soak needs exactly one --store")
    if arguments.soak and (arguments.fault or arguments.strikes or arguments.write_docs):
        parser.error("--soak chooses its faults: leave out --fault, --strikes and --write-docs")
    if arguments.write_docs and (arguments.store or arguments.fault):
        parser.error("--write-docs runs every store and fault: leave out --store and --fault")
    if arguments.write_docs and (why := shim.missing()):
        parser.error(f"--write-docs runs every store and fault: {why}")
    # However the run ends, servers and workers end with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    run = Run(arguments)
    try:
        run.all()
    except NothingToDoError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return run.finish()


class NothingToDoError(Exception):
    """A requested fault cannot happen to the store."""


class Run:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._stores: list[str] = arguments.store or list(TARGETS)
        self._plan = Plan(arguments.seconds, arguments.strikes, arguments.seed)
        self._page = Page("Lockfast: real servers, real faults")
        self._results: list[Result] = []

    def all(self) -> None:
        """Run every case. Raises NothingToDoError if a requested one is impossible."""
        for store in self._stores:
            if self._arguments.soak:
                with TARGETS[store]() as target:
                    self._soak(target)
            else:
                self._store(store, self._faults(store))

    def _faults(self, store: str) -> list[str]:
        """Return the requested faults that the store can have."""
        found = []
        for fault in self._arguments.fault or FAULTS:
            why = possible(TARGETS[store](), fault)
            if not why:
                found.append(fault)
            elif self._arguments.fault and len(self._stores) == 1:
                raise NothingToDoError(f"{store} cannot have the fault {fault}: {why}")
            elif why == shim.missing():
                print(f"{store:<15}{fault:<15}not run: {why}", flush=True)
        return found

    def _store(self, store: str, faults: Sequence[str]) -> None:
        left = list(reversed(faults))
        while left:
            with TARGETS[store]() as target:
                is_whole = True
                # A case that broke a promise may have left its servers broken: start new ones.
                while left and is_whole:
                    with tempfile.TemporaryDirectory(prefix="lf-case-") as directory:
                        case = Case(target, left.pop(), self._plan, Path(directory))
                        is_whole = self._take(case.run())

    def _soak(self, target: Target) -> None:
        def say(text: str) -> None:
            print(text, flush=True)

        with tempfile.TemporaryDirectory(prefix="lf-case-") as directory:
            seconds, seed = self._arguments.soak, self._arguments.seed
            self._take(soak(target, seconds, seed, Path(directory), say))

    def _take(self, result: Result) -> bool:
        """Print and keep a result. Return whether all promises were kept."""
        if not self._results:
            print(HEADER)
        print(row(result), flush=True)
        for problem in result.problems[:5]:
            print(f"    {problem}", flush=True)
        if result.problems:
            FINDINGS.mkdir(exist_ok=True)
            kept = FINDINGS / f"chaos-{result.store}-{result.fault}-{self._plan.seed}.jsonl"
            write_history(result.entries, kept)
            print(f"    history: {kept}", flush=True)
        self._page.add(result)
        result.entries = []
        self._results.append(result)
        return not result.problems

    def finish(self) -> int:
        grants = sum(result.grants for result in self._results)
        strikes = sum(result.strikes for result in self._results)
        broken = [result for result in self._results if result.problems]
        summary = f"{len(self._results)} cases, {strikes} faults, {grants} grants, seed "
        summary += f"{self._plan.seed}, {os.cpu_count()} cores; {len(broken)} cases broke a promise"
        print(f"\n{LEGEND}\n\n{summary}")
        self._arguments.report.write_text(self._page.text(summary), encoding="utf-8")
        print(f"timelines: {self._arguments.report}")
        if self._arguments.write_docs:
            write_docs(self._results)
        return 1 if broken else 0


# ── the command line ─────────────────────────────────────────────────────────────────


def _list() -> None:
    print("stores:", ", ".join(TARGETS))
    print("faults:")
    for name, fault in FAULTS.items():
        print(f"  {name:<15}{fault.text}")
    print(f"  {MIX:<15}any of them after which the store keeps all of its promises")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Break real servers, connections and processes under workers that use locks.",
        epilog="Exit code 0: all promises were kept. 1: one was broken. 2: wrong usage.",
    )
    parser.add_argument("--store", action="append", default=[], choices=list(TARGETS))
    parser.add_argument("--fault", action="append", default=[], choices=[*FAULTS, MIX])
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=4.0,
        metavar="S",
        help="faults strike for S (default 4)",
    )
    parser.add_argument(
        "--strikes", type=_count, default=0, metavar="N", help="go on until the N-th strike"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--soak", type=_span, metavar="TIME", help="mix all faults for TIME: 90s, 30m, 2h"
    )
    parser.add_argument(
        "--report", type=_file, default=Path("chaos-report.html"), metavar="FILE", help="HTML page"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="write the results of every store and fault into docs/how-it-is-tested.md",
    )
    parser.add_argument("--list", action="store_true", help="list stores and faults")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a day")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _span(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    if text[-1:] not in units:
        raise argparse.ArgumentTypeError(f"{text!r} has no unit; write 90s, 30m or 2h")
    return _seconds(text[:-1]) * units[text[-1]]


def _file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {str(path.parent)!r}")
    return path


if __name__ == "__main__":
    sys.exit(main())
