"""The embedded store against a floor and against other locks on one machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.contention import Contention, measure_contention
from bench.contestants import LOCKS, ApswFloor, Contestant, Floor, Lockfast, Sqlite3Floor
from bench.crew import Crew
from bench.figures import Summary
from bench.idle import measure_idle_handover
from bench.order import Order, measure_order
from bench.uncontended import Uncontended, measure_uncontended

__all__ = ["Embedded", "Plan", "run_embedded"]

FEW, MANY = 2, 8


@dataclass(frozen=True)
class Plan:
    """The amount of work; a round measures each contestant once."""

    rounds: int = 10
    pairs_per_round: int = 300
    handovers_per_round: int = 4
    grants_per_process: int = 200


@dataclass(frozen=True)
class Embedded:
    """All figures, by the contestant's name."""

    library: str
    """The SQLite library of the floor: the one Lockfast uses."""
    uncontended: dict[str, Uncontended]
    idle_ms: dict[str, Summary]
    contention: dict[int, dict[str, Contention]]
    """By the number of processes."""
    order: dict[str, Order]


def run_embedded(
    plan: Plan, directory: Path, without: Sequence[str], progress: Callable[[str], None]
) -> Embedded:
    kinds = [kind for kind in LOCKS if kind.name not in without]
    progress("uncontended")
    with _opened(kinds, directory / "alone") as (floor, locks):
        uncontended = measure_uncontended(
            [floor, *locks], rounds=plan.rounds, pairs_per_round=plan.pairs_per_round
        )
        library = floor.library
    with ExitStack() as stack:
        progress(f"starting {MANY} processes for each of {len(kinds)}")
        crews = [
            stack.enter_context(Crew(kind, _made(directory / "crew" / kind.name), MANY))
            for kind in kinds
        ]
        progress("idle hand-over")
        idle_ms = measure_idle_handover(
            crews, rounds=plan.rounds, handovers_per_round=plan.handovers_per_round
        )
        contention = {}
        for processes in (FEW, MANY):
            progress(f"contention of {processes} processes")
            contention[processes] = measure_contention(
                crews,
                rounds=plan.rounds,
                processes=processes,
                grants_per_process=plan.grants_per_process,
            )
        progress("order of grants")
        order = measure_order(crews, rounds=plan.rounds)
    return Embedded(library, uncontended, idle_ms, contention, order)


@contextmanager
def _opened(
    kinds: Sequence[type[Contestant]], directory: Path
) -> Iterator[tuple[Floor, list[Contestant]]]:
    with ExitStack() as stack:
        locks = []
        for kind in kinds:
            locks.append(kind(_made(directory / kind.name)))
            stack.callback(locks[-1].close)
            if kind is Lockfast:
                # Which library it uses is known only after the first use.
                locks[-1].acquire()
                locks[-1].release()
        floor_kind = ApswFloor if "apsw" in sys.modules else Sqlite3Floor
        floor = floor_kind(_made(directory / "floor"))
        stack.callback(floor.close)
        yield floor, locks


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
