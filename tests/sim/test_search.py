"""The search itself: its verdicts, its replay command, its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockfast.sim.__main__ import main
from lockfast.sim.exhaust import exhaust
from lockfast.sim.mix import mix_of_seed, write_mix
from lockfast.sim.planted import planted
from lockfast.sim.search import search, try_seed
from lockfast.sim.shrink import shrink

SEEDS_FILE = Path(__file__).parents[1] / "regressions" / "seeds.txt"


def regression_seeds() -> list[tuple[int, str]]:
    lines = SEEDS_FILE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("#", 1) for line in lines if line.strip() and not line.startswith("#"))
    return [(int(seed), why.strip()) for seed, why in rows]


@pytest.mark.parametrize(("seed", "why"), regression_seeds())
def test_a_seed_that_once_failed_stays_clean(seed: int, why: str) -> None:
    assert try_seed(seed)[1] == [], why


def test_a_stretch_of_seeds_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "150", "--first", "0", "--jobs", "1"]) == 0
    assert "150 schedules" in capsys.readouterr().out


def test_a_failure_prints_the_command_that_replays_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted("more permits than there are"):
        assert main(["search", "--seeds", "200", "--first", "0", "--jobs", "1"]) == 1
        out = capsys.readouterr().out
        command = next(line for line in out.splitlines() if "replay:" in line)
        arguments = command.split("lockfast.sim ")[1].split()
        assert arguments[0] == "replay"
        assert main(arguments) == 1
        assert "FAILED exclusion" in capsys.readouterr().out
    assert main(arguments) == 0


def test_all_cores_find_the_same_as_one() -> None:
    alone, together = search(40, 60, jobs=1), search(40, 60, jobs=2)
    assert (alone.schedules, alone.operations) == (together.schedules, together.operations)


def test_a_failing_mix_is_made_smaller() -> None:
    with planted("more permits than there are"):
        seed = next(s for s in range(3, 60, len("x") * 14) if try_seed(s)[1])
        smaller = shrink(mix_of_seed(seed), seed, "exclusion")
        assert try_seed(smaller.seed, smaller.mix)[1]
    assert not smaller.mix.faults
    assert smaller.mix.clients == 2
    assert smaller.mix.knobs_of_workload("permits")["rounds"] < 6


def test_a_run_is_a_seed_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(write_mix(mix_of_seed(77)), encoding="utf-8")
    history = tmp_path / "history.jsonl"
    assert main(["replay", "--seed", "77"]) == 0
    by_seed = capsys.readouterr().out
    assert main(["replay", "--seed", "77", "--mix", str(path), "--history", str(history)]) == 0
    assert by_seed.splitlines()[-1] in capsys.readouterr().out
    assert main(["check", str(history)]) == 0


def test_a_wrong_mix_is_an_error_of_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mix.toml"
    path.write_text("[workloads.dancing]\n", encoding="utf-8")
    assert main(["replay", "--seed", "1", "--mix", str(path)]) == 2
    assert "no workload 'dancing'" in capsys.readouterr().err


def test_every_interleaving_of_a_small_world() -> None:
    result = exhaust(3000)
    assert result.problem == ""
    assert result.states == 3000


def test_an_interleaving_that_breaks_a_promise_is_found_with_its_way() -> None:
    with planted("reader overtaking writer"):
        result = exhaust(3000)
    assert "model" in result.problem
    assert 1 <= len(result.path) <= 6
