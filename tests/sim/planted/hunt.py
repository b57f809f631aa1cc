"""Find a planted bug by the search, beginning with the seed that found it last.

`python -m tests.sim.planted.hunt` searches for all of them from the first seed on, prints what each
cost, and writes their seeds to `seeds.json`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

from lockfast.sim.search import Failure, failures
from tests.sim.planted.bugs import Bug, bugs, planted

SCHEDULES = {
    "memory": 4000,
    "redis": 1000,
    "etcd": 1200,
    "sqlite": 600,
    "postgresql": 200,
    "zookeeper": 400,
}
"""At most what one core runs in a minute; counted, because a busy machine runs fewer."""
SEEDS = Path(__file__).with_name("seeds.json")


def hunt(bug: Bug, known: Iterable[int] = ()) -> Failure:
    """Return the first failure by the promise that the bug breaks; try the known seeds first."""
    seen = []
    with planted(bug.name):
        for failure in failures([*known, *range(1, SCHEDULES[bug.store] + 1)], bug.store):
            checks = {problem.check for problem in failure.problems}
            assert "error" not in checks, f"{bug.name!r} does not fit: {failure}"
            if bug.promise in checks:
                return failure
            seen.append(str(failure))
    raise AssertionError(f"{bug.promise!r} was not broken; seen: {seen}")


def known_seeds(bug: Bug) -> list[int]:
    """Return the seed that found the bug last, unless it has not been searched for yet."""
    seeds = json.loads(SEEDS.read_text())
    return [seeds[bug.name]] if bug.name in seeds else []


def main() -> None:
    seeds = {}
    for bug in bugs():
        began_s = time.process_time()
        seeds[bug.name] = hunt(bug).seed
        spent_s = time.process_time() - began_s
        print(f"{spent_s:6.1f} s  seed {seeds[bug.name]:<6}{bug.name}", flush=True)
        SEEDS.write_text(json.dumps(seeds, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
