"""The shipped store in the simulator: its promises under every fault, and planted bugs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from lockfast.sim.mix import mix_of_seed
from lockfast.sim.search import try_seed
from tests.quorum.planted import BUGS, Bug

SEEDS = 60
SCHEDULES = 200
"""At most what one core runs in a minute."""


def test_every_promise_is_kept() -> None:
    granted = 0
    for seed in range(SEEDS):
        mix = mix_of_seed(seed, "quorum")
        run, problems = try_seed(seed, mix)
        assert problems == [], f"seed {seed}: {mix}"
        tokens = [entry["token"] for entry in run.entries if entry.get("got") == "granted"]
        assert len(set(tokens)) == len(tokens), f"seed {seed}: a token of two locks"
        granted += len(tokens)
    assert granted > 10 * SEEDS, "locks were taken"


def test_a_seed_gives_one_trace() -> None:
    one, other = (try_seed(5, mix_of_seed(5, "quorum"))[0] for _ in range(2))
    assert one.trace_hash() == other.trace_hash()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_mistake_is_found(bug: Bug) -> None:
    with ExitStack() as stack:
        bug.plant(stack)
        for seed in range(SCHEDULES):
            mix = bug.mix or mix_of_seed(seed, "quorum")
            checks = {p.check for p in try_seed(seed, mix)[1]}
            assert "error" not in checks, f"seed {seed}: it does not fit the code any more"
            if checks & bug.promises:
                break
        else:
            pytest.fail(f"{bug.promises} were not broken in {SCHEDULES} schedules")
    assert try_seed(seed, mix)[1] == [], "it was the mistake"
