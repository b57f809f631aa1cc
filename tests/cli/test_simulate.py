"""lockfast simulate and check, as processes: their output and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockfast.cli import main

HISTORY = [
    {
        "at": 1,
        "op": 1,
        "by": "c1",
        "ask": "acquire",
        "places": [{"kind": "lock", "name": "a", "mode": "exclusive"}],
    },
    {"at": 2, "op": 1, "got": "granted", "token": 5},
    {
        "at": 3,
        "op": 2,
        "by": "c2",
        "ask": "acquire",
        "places": [{"kind": "lock", "name": "a", "mode": "exclusive"}],
    },
    {"at": 9, "op": 2, "got": "granted", "token": 6},
]


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two clients that believe to hold the lock at once."""
    path = tmp_path / "history.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in HISTORY), encoding="utf-8")
    return path


def test_a_story_is_told_and_drawn_beside_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "zombie", "--seed", "7"]) == 0
    assert "timeline in zombie-7.html" in capsys.readouterr().out
    assert "token 1 refused" in (tmp_path / "zombie-7.html").read_text(encoding="utf-8")
    assert main(["simulate", "zombie", "--no-guard", "--no-html"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["zombie-7.html"]


def test_an_unknown_scenario_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "zombies", "--no-html"]) == 2
    assert "there is no scenario 'zombies'; there are turns," in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "turns", "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_who_has_read_enough_of_a_story_is_told_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockfast", "simulate", "turns"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=nobody, stderr=subprocess.PIPE, check=False
        )
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "asimpy", None)
    assert main(["simulate", "zombie"]) == 2
    error = capsys.readouterr().err
    assert "asimpy is not installed" in error
    assert "pip install 'lockfast[sim]'" in error


def test_check_does_not_need_the_extra(history: Path) -> None:
    # In its own process: other tests here have imported the simulator, and will need it.
    script = f"""
import sys
from lockfast.cli import main
sys.modules["asimpy"] = None
assert main(["check", {str(history)!r}]) == 1
assert "lockfast.sim.runtime" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.stderr == b""
    assert b"FAILED exclusion" in done.stdout


def test_check_tells_programs_and_draws(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["check", str(history), "--json", "--html", str(page)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["operations"] == 2
    assert {problem["check"] for problem in found["problems"]} == {"exclusion", "explanation"}
    assert "<svg" in page.read_text(encoding="utf-8")


def test_a_store_that_forgets_is_judged_by_its_tokens(history: Path) -> None:
    assert main(["check", str(history), "--forgets"]) == 0
    history.write_text(history.read_text().replace('"token": 6', '"token": 4'), encoding="utf-8")
    assert main(["check", str(history), "--forgets"]) == 1
