"""Shrink a failing schedule: fewer faults, clients and rounds, until nothing can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from lockfast.sim.mix import Mix
from lockfast.sim.search import try_seed

SEEDS_TRIED: Final = 40
"""A smaller mix runs differently, so a few seeds are tried with it."""


class Smaller(NamedTuple):
    mix: Mix
    seed: int
    problems: tuple[str, ...]


def shrink(mix: Mix, seed: int, kind: str | None = None) -> Smaller:
    """Return the smallest mix found that breaks the same promise, and a seed that shows it."""
    _, problems = try_seed(seed, mix)
    assert problems, "there is nothing to shrink"
    wanted = kind if kind is not None else problems[0].check

    def fails(tried: Mix) -> Smaller | None:
        for other in range(seed, seed + SEEDS_TRIED):
            _, found = try_seed(other, tried)
            if any(problem.check == wanted for problem in found):
                return Smaller(tried, other, tuple(map(str, found)))
        return None

    best = Smaller(mix, seed, tuple(map(str, problems)))
    improved = True
    while improved:
        improved = False
        for candidate in smaller_mixes(best.mix):
            found = fails(candidate)
            if found is not None:
                best, improved = found, True
                break
    return best


def smaller_mixes(mix: Mix) -> Iterator[Mix]:
    """Yield mixes with slightly less in them."""
    for fault in mix.faults:
        yield replace(mix, faults=_without(mix.faults, fault))
    if len(mix.workloads) > 1:
        for workload in mix.workloads:
            yield replace(mix, workloads=_without(mix.workloads, workload))
    for fewer in sorted({0, mix.operations // 2, mix.operations - 5}):
        if 0 <= fewer < mix.operations:
            yield replace(mix, operations=fewer)
    if mix.clients > 2:
        yield replace(mix, clients=mix.clients - 1)
    for name in mix.workloads:
        rounds = mix.knobs_of_workload(name)["rounds"]
        for fewer in sorted({rounds // 2, rounds - 1} - {0, -1, rounds}):
            knobs = {**mix.workloads[name], "rounds": fewer}
            yield replace(mix, workloads={**mix.workloads, name: knobs})
    for name in mix.faults:
        times = mix.knobs_of_fault(name).get("times", 1)
        if times > 1:
            yield replace(mix, faults={**mix.faults, name: {**mix.faults[name], "times": 1}})


def _without(table: object, key: str) -> dict[str, dict[str, object]]:
    assert isinstance(table, dict)
    return {name: knobs for name, knobs in table.items() if name != key}
