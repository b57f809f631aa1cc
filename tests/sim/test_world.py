"""Worlds: the same seed gives the same history anywhere, and the promises hold."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lockfast.sim import world
from lockfast.sim.checker import check_register
from lockfast.sim.faults import FAULTS
from lockfast.sim.mix import Mix, MixError, mix_of_seed, read_case, write_mix
from lockfast.sim.search import first_failure, try_seed
from lockfast.sim.workloads import WORKLOADS

OF_THE_TABLE = [name for name, fault in FAULTS.items() if "memory" in fault.stores]

HASHES = """
import logging, sys
logging.disable(logging.CRITICAL)
from lockfast.sim.mix import mix_of_seed
from lockfast.sim.world import World
for seed in (3, 14, 159, 2653):
    print(World(mix_of_seed(seed), seed).run().trace_hash())
"""


def test_a_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", HASHES],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    ]
    assert len(outputs[0].split()) == 4
    assert len(set(outputs[0].split())) == 4
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_each_workload_with_each_fault(workload: str) -> None:
    for number, fault in enumerate(OF_THE_TABLE):
        run, problems = try_seed(number, Mix({workload: {}}, {fault: {}}))
        assert problems == [], f"{workload} with {fault}, seed {number}"
        assert run.operations > 10


def test_faults_do_something() -> None:
    """Each changes the course of events."""
    quiet = set(OF_THE_TABLE)
    for seed in range(5, 9):
        calm, _ = try_seed(seed, Mix({"turns": {}}))
        for fault in sorted(quiet):
            run, _ = try_seed(seed, Mix({"turns": {}}, {fault: {}}))
            if run.trace_hash() != calm.trace_hash():
                quiet.remove(fault)
    assert not quiet


def test_a_mix_survives_its_file() -> None:
    for seed in range(40):
        mix = mix_of_seed(seed)
        again = read_case(write_mix(mix)).mix
        one, _ = try_seed(seed, mix)
        other, _ = try_seed(seed, again)
        assert one.trace_hash() == other.trace_hash()
        if seed > 3:
            assert write_mix(again) == write_mix(mix)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[workloads.turns", "not TOML"),
        ("[world]\nclients = 3", "at least one workload"),
        ("[workloads.dancing]", "no workload 'dancing'"),
        ("[workloads.turns]\nsteps = 3", "no knob 'steps'"),
        ("[workloads.turns]\n[faults.meteor]", "no fault 'meteor'"),
        ("[workloads.turns]\n[world]\nclients = 'many'", "expected int"),
        ("[workloads.turns]\n[world]\nmoons = 2", "no 'moons'"),
        ("[workloads.turns]\n[weather]", "unknown 'weather'"),
        ("seed = 'x'\n[workloads.turns]", "seed is a number"),
    ],
)
def test_a_wrong_mix_is_refused(text: str, why: str) -> None:
    with pytest.raises(MixError, match=why):
        read_case(text)


def test_without_a_guard_a_paused_writer_spoils_the_register() -> None:
    """The fault is real: only the guard keeps the register correct."""
    faults = {"pause": {"times": 6}, "delay": {"times": 4, "late_ms": 2000}}
    spoilt = 0
    for seed in range(60):
        unfenced = Mix({"turns": {}}, faults, fenced=False)
        run, problems = try_seed(seed, unfenced)
        assert problems == []
        spoilt += bool(list(check_register(run.entries)))
        _, guarded = try_seed(seed, Mix({"turns": {}}, faults))
        assert guarded == []
    assert spoilt > 0


def test_a_world_that_takes_too_many_steps_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "steps_max", lambda mix: 50)
    found = first_failure([7])
    assert found is not None
    assert found.seed == 7
    problem = found.problems[0]
    assert (problem.check, problem.text) == ("liveness", "it did not end within 50 steps")
