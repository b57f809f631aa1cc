"""`./dev mutate`: plant a sample of small mistakes, one at a time, and print those no test notices.

Each mutant lives in a forked process: an import hook gives that process the changed module, and
nothing is written to the working tree. The sample is drawn by the mutants' names, so it is the
same on every machine and changes only where the code changes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, NamedTuple

from tests.mutation.mutants import Mutant, mutants_of, mutated, mutated_script, path_of
from tests.mutation.plan import TARGETS, tests_of

SAMPLE: Final = 100
EXPLAINED: Final = Path(__file__).with_name("survivors.toml")
"""Mutants that no test can or needs to kill, each with the reason."""
PRELOADED: Final = ("pytest", "apsw", "lupa", "asimpy", "asyncio", "sqlite3")
"""Imported once, before forking; nothing of lockfast."""
CPU_FACTOR, CPU_MORE_S = 4, 20
WALL_FACTOR: Final = 8
"""Wall-clock limit, as a multiple of the CPU time allowed: ends a mutant that waits forever."""


class Outcome(NamedTuple):
    mutant: Mutant
    killed: bool
    seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    sys.dont_write_bytecode = True
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.split(".")[0] == "lockfast" for name in sys.modules), "imported too early"
    explained = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))
    below = False
    with tempfile.TemporaryDirectory(prefix="lockfast-mutate-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        for package in options.package or TARGETS:
            below |= not _judge(package, options, explained, Path(scratch))
    return 1 if below else 0


def _judge(
    package: str, options: argparse.Namespace, explained: dict[str, str], scratch: Path
) -> bool:
    tests = tests_of(package)
    everything = [
        mutant for module in tests for mutant in mutants_of(module) if options.only in str(mutant)
    ]
    size = options.sample or (len(everything) if options.only else SAMPLE)
    sample = sorted(everything, key=lambda mutant: mutant.draw)[:size]
    print(f"{package}: {len(sample)} of {len(everything):,} mutants", flush=True)
    limits = _limits_s({tests[m.module] for m in sample}, scratch)
    outcomes = _run_all(sample, tests, limits, options.jobs, scratch)
    survivors = [outcome.mutant for outcome in outcomes if not outcome.killed]
    known = [mutant for mutant in survivors if str(mutant) in explained]
    share = 100 * (len(sample) - len(survivors)) / max(1, len(sample))
    for mutant in survivors:
        why = explained.get(str(mutant))
        print(f"  survived{f' ({why})' if why else ''}: {mutant}")
    print(
        f"{package}: {share:.0f} % killed (target {TARGETS[package]} %), "
        f"{len(survivors)} survived, {len(known)} of them explained",
        flush=True,
    )
    return share >= TARGETS[package]


def _limits_s(plans: Collection[Sequence[str]], scratch: Path) -> dict[Sequence[str], int]:
    """Return the CPU time that each list of tests may take with a mutant."""
    used_s: dict[str, float] = {}
    for plan in plans:
        options = [each for each in plan if each.startswith("-")]
        for path in plan:
            if path not in used_s and path not in options:
                used_s[path] = _cpu_s([path, *options], scratch)
    return {
        plan: int(CPU_FACTOR * sum(used_s.get(path, 0.0) for path in plan)) + CPU_MORE_S
        for plan in plans
    }


def _cpu_s(paths: Sequence[str], scratch: Path) -> float:
    """Return the CPU time of these tests without a mutant; they must pass."""
    child = _start(None, paths, scratch, 3600)
    _, status, usage = os.wait4(child, 0)
    if status:
        output = (scratch / f"{child}.txt").read_text(errors="replace")
        sys.exit(f"without any mutant {' '.join(paths)} fail:\n{output[-3000:]}")
    return usage.ru_utime + usage.ru_stime


def _run_all(
    sample: Sequence[Mutant],
    tests: dict[str, tuple[str, ...]],
    limits: dict[Sequence[str], int],
    jobs: int,
    scratch: Path,
) -> list[Outcome]:
    waiting, outcomes = list(reversed(sample)), []
    running: dict[int, tuple[Mutant, float, int]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            paths = tests[mutant.module]
            child = _start(mutant, paths, scratch, limits[paths])
            running[child] = (mutant, time.monotonic(), WALL_FACTOR * limits[paths])
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            mutant, began, _ = running.pop(child)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # whatever the tests left behind
            outcomes.append(Outcome(mutant, status != 0, time.monotonic() - began))
            (scratch / f"{child}.txt").unlink(missing_ok=True)
            if status == 0:
                print(f"  … {mutant}", flush=True)
            continue
        for child, (_, began, limit_s) in running.items():
            if time.monotonic() - began > limit_s:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)
    return outcomes


def _start(mutant: Mutant | None, paths: Sequence[str], scratch: Path, cpu_s: int) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        # Tests interrupt themselves; a shell starts background jobs with the signal ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        output = os.open(scratch / f"{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if mutant is not None:
            _plant(mutant)
        import pytest

        temporary = f"--basetemp={scratch / f'tests-{os.getpid()}'}"
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", temporary, *paths], [_Unshrunk()])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(int(code))


def _plant(mutant: Mutant) -> None:
    """Make this process see the mutated module or script."""
    if not mutant.module.endswith(".lua"):
        sys.meta_path.insert(0, _Finder(mutant))
        return
    file, text, read_text = path_of(mutant.module), mutated_script(mutant), Path.read_text

    def read(self: Path, *args: Any, **options: Any) -> str:
        return text if self == file else read_text(self, *args, **options)

    Path.read_text = read  # type: ignore[method-assign]


class _Unshrunk:
    """A plugin of pytest: do not shrink what failed, because nobody reads it."""

    def pytest_collection_finish(self) -> None:
        from lockfast.conformance import commands

        commands.SHRINKS_MAX = 0


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives one module its mutated form."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._tree: ast.Module = mutated(mutant)

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        file = path_of(fullname)
        return importlib.util.spec_from_file_location(fullname, file, loader=self)

    def get_source(self, fullname: str) -> str:
        return ast.unparse(self._tree)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, str(path_of(fullname)), "exec")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev mutate", description=__doc__)
    parser.add_argument("package", nargs="*", choices=[*TARGETS, []], help="default: all of them")
    parser.add_argument(
        "--sample", type=int, help=f"default {SAMPLE} of each package, or all with --only"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
