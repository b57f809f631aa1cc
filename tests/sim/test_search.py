"""The search itself: its verdicts, its replay command, its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockfast.cli import main as lockfast
from lockfast.sim import speed
from lockfast.sim.__main__ import main
from lockfast.sim.exhaust import exhaust
from lockfast.sim.mix import STORES, Case, mix_of_seed, read_case_file, write_case, write_mix
from lockfast.sim.search import search, try_seed
from lockfast.sim.shrink import shrink
from tests.sim.planted.bugs import planted

SEEDS = sorted((Path(__file__).parents[1] / "regressions" / "seeds").glob("*.toml"))
"""Runs that fail when a fix is reverted. The list only grows."""


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_a_run_that_once_failed_stays_clean(path: Path) -> None:
    case = read_case_file(path)
    assert case.seed is not None
    assert try_seed(case.seed, case.mix)[1] == [], case.why


@pytest.mark.parametrize(
    ("runs", "bug"),
    [
        ("lost-before-heard", "a grant that was lost on its way is taken for held"),
        ("closed-client-believes", "a client that is closed still believes"),
        ("release-not-heard", "a release that is not heard keeps the lock for long"),
    ],
)
def test_with_its_bug_back_a_run_fails_again(runs: str, bug: str) -> None:
    cases = [read_case_file(path) for path in SEEDS if path.stem.startswith(runs)]
    with planted(bug):
        assert any(try_seed(case.seed or 0, case.mix)[1] for case in cases)


def test_the_runs_that_once_failed_say_everything() -> None:
    """Nothing is left to defaults, which may change."""
    assert len(SEEDS) >= 11
    for path in SEEDS:
        case = read_case_file(path)
        assert case.why
        assert path.read_text(encoding="utf-8") == write_case(case)


def test_a_stretch_of_seeds_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """The searches of `tests/mutation/test_searches.py` are longer."""
    assert main(["--seeds", "20", "--first", "150", "--jobs", "1", "--store", "memory"]) == 0
    assert "20 schedules" in capsys.readouterr().out


def test_the_default_search_covers_every_store(capsys: pytest.CaptureFixture[str]) -> None:
    """And reports for each how many schedules a core runs per minute."""
    assert main(["--seeds", "14", "--first", "0", "--jobs", "1"]) == 0
    told = capsys.readouterr().out.splitlines()[-len(STORES) :]
    for store, line in zip(STORES, told, strict=True):
        assert line.startswith(f"{store}: ")
        assert "schedules per minute and core" in line


def test_a_failure_prints_the_command_that_replays_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what it was reduced to: a file, a picture, and one command that shows it again."""
    search = ["--store", "memory", "--seeds", "200", "--first", "0", "--jobs", "1", "--findings"]
    with planted("more permits than there are"):
        assert main([*search, str(tmp_path / "found")]) == 1
        out = capsys.readouterr().out
        replay = next(line for line in out.splitlines() if "replay:" in line)
        arguments = replay.split("lockfast.sim ")[1].split()
        assert main(arguments) == 1
        assert "FAILED exclusion" in capsys.readouterr().out
        smaller = next(line for line in out.splitlines() if "smaller:" in line)
        words = smaller.split("lockfast ")[1].split("  ")[0].split()
        assert lockfast([*words, "--no-html"]) == 1
        assert "FAILED exclusion" in capsys.readouterr().out
    assert main(arguments) == 0
    (picture,) = (tmp_path / "found").glob("*.html")
    assert "permits of" in picture.read_text(encoding="utf-8")


def test_all_cores_find_the_same_as_one() -> None:
    alone, together = search(40, 60, jobs=1), search(40, 60, jobs=2)
    assert (alone.schedules, alone.operations) == (together.schedules, together.operations)


def test_a_failing_mix_is_made_smaller() -> None:
    with planted("more permits than there are"):
        of_permits = (s for s in range(200) if "permits" in mix_of_seed(s).workloads)
        seed = next(s for s in of_permits if try_seed(s)[1])
        smaller = shrink(mix_of_seed(seed), seed, "exclusion")
        assert try_seed(smaller.seed, smaller.mix)[1]
    assert not smaller.mix.faults
    assert smaller.mix.clients == 2
    assert smaller.mix.operations < 50


def test_a_run_is_a_seed_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(write_case(Case(mix_of_seed(77), 77, "an example")), encoding="utf-8")
    history = tmp_path / "history.jsonl"
    assert main(["replay", "--seed", "77"]) == 0
    by_seed = capsys.readouterr().out
    assert main(["replay", "--mix", str(path), "--history", str(history)]) == 0
    assert by_seed.splitlines()[-1] in capsys.readouterr().out
    assert lockfast(["check", str(history)]) == 0


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
    assert result.states >= 3000
    assert "states per second" in str(result)


def test_the_speed_is_told_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, less in (("LEASES", 100), ("OPERATIONS", 60), ("SCHEDULES", 3)):
        monkeypatch.setattr(speed, name, less)
    assert main(["speed"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert "grants a second" in told[0]
    assert "operations a second" in told[1]
    assert "schedules per minute and core" in told[-1]


def test_a_schedule_has_fifty_operations_at_least() -> None:
    assert search(900, 60, jobs=1).least >= 50


def test_a_mix_without_a_seed_needs_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(write_mix(mix_of_seed(5)), encoding="utf-8")
    assert main(["replay", "--mix", str(path)]) == 2
    assert lockfast(["simulate", str(path), "--no-html"]) == 2
    assert "seed" in capsys.readouterr().err
    assert lockfast(["simulate", str(path), "--seed", "3", "--no-html"]) == 0


def test_an_interleaving_that_breaks_a_promise_is_found_with_its_way() -> None:
    with planted("reader overtaking writer"):
        result = exhaust(3000)
    assert "model" in result.problem
    assert 1 <= len(result.path) <= 6


def test_options_before_the_action_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """They belong to the action, which would otherwise replace them with its defaults."""
    with pytest.raises(SystemExit) as refused:
        main(["--store", "sqlite", "search"])
    assert refused.value.code == 2
    assert "unrecognized arguments: search" in capsys.readouterr().err
