"""The parts of `./dev chaos` that judge: the witness, the rule for memory growth, the CLI."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from chaos.case import Result
from chaos.docs import PAGE, cases_on
from chaos.faults import FAULTS, possible
from chaos.report import Page, row
from chaos.shim import Shim, missing
from chaos.soak import Figure, Sample, figures_of, pairs_of
from chaos.targets import TARGETS
from chaos.witness import Proof, Register, Witness, overlaps
from lockfast.sim.checker import check_register

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("proofs", "count"),
    [
        ([Proof(0, 5, 1, "a"), Proof(5, 9, 2, "b")], 0),
        ([Proof(0, 6, 1, "a"), Proof(5, 9, 2, "b")], 1),
        ([Proof(0, 9, 1, "a"), Proof(2, 3, 2, "b"), Proof(4, 5, 3, "c")], 2),
        ([Proof(0, 0, 1, "a"), Proof(0, 9, 2, "b")], 0),
    ],
)
def test_proofs_overlap_if_one_begins_before_another_ends(proofs: list[Proof], count: int) -> None:
    assert len(list(overlaps("x", proofs))) == count


def test_the_fenced_register_refuses_what_the_unfenced_one_loses(tmp_path: Path) -> None:
    with Witness(tmp_path / "socket") as witness:
        old, new = Register(str(witness.path), "old"), Register(str(witness.path), "new")
        for register, token in ((old, 1), (new, 2)):
            assert register.ask("read", "x", token) == {"value": 0}
            assert register.ask("read unfenced", "x", token) == {"value": 0}
        for register, token in ((new, 2), (old, 1)):
            register.ask("write unfenced", "x", token, value=1)
            answer = register.ask("write", "x", token, value=1)
            assert ("stale" in answer) == (token == 1)
        assert witness.refused == 1
        assert witness.unfenced_lost() == 1
        assert list(check_register(witness.entries)) == []
        old.close()
        new.close()


def test_a_figure_that_grows_is_not_flat() -> None:
    assert Figure("x", [10] * 40, 0.0, 2).is_flat
    assert Figure("x", [90] * 10 + [10] * 30, 0.0, 2).is_flat
    assert not Figure("x", list(range(40)), 0.0, 2).is_flat
    leak = [Sample(i, 50_000 + i * 1000, 30, 8, None) for i in range(40)]
    assert [figure.name for figure in figures_of(leak) if not figure.is_flat] == ["memory kB"]


def test_a_pair_is_a_release_to_which_the_store_replied() -> None:
    done = [
        *({"at": 1, "op": 1, "ask": "acquire"}, {"at": 2, "op": 1, "got": "granted"}),
        *({"at": 3, "op": 2, "ask": "release", "of": 1}, {"at": 4, "op": 2, "got": "done"}),
    ]
    unknown = [{"at": 5, "op": 3, "ask": "release", "of": 1}, {"at": 6, "op": 3, "got": "unknown"}]
    converted = [{"at": 7, "op": 4, "ask": "convert", "of": 1}, {"at": 8, "op": 4, "got": "done"}]
    assert pairs_of([*done, *unknown, *converted]) == 1


def test_a_process_with_the_shim_obeys_its_page(tmp_path: Path) -> None:
    """The wall clock moves and the monotonic one does not; a full disk keeps files from growing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    shim = Shim(tmp_path, disk)
    script = (
        "import sys, time\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        f"        with open({str(disk / 'file')!r}, 'a') as file: file.write('x')\n"
        "        wrote = 'yes'\n"
        "    except OSError as error: wrote = error.strerror\n"
        "    print(time.time(), time.monotonic(), wrote, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=shim.environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> tuple[float, float, str]:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            wall, steady, wrote = process.stdout.readline().split(" ", 2)
            return float(wall) - time.time(), float(steady) - time.monotonic(), wrote.strip()

        wall, steady, wrote = ask()
        assert abs(wall) < 60
        assert wrote == "yes"
        shim.move_clock(-3600)
        shim.fill_disk(True)
        wall, steady, wrote = ask()
        assert abs(wall + 3600) < 60
        assert abs(steady) < 60
        assert wrote == "No space left on device"
        shim.fill_disk(False)
        assert ask()[2] == "yes"
        process.stdin.close()
        process.wait(30)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--store", "oracle"], "invalid choice: 'oracle'"),
        (["--fault", "rain"], "invalid choice: 'rain'"),
        (["--seconds", "-1"], "'-1' is not a number of seconds up to a day"),
        (["--strikes", "x"], "'x' is not a positive whole number"),
        (["--soak", "30"], "'30' has no unit; write 90s, 30m or 2h"),
        (["--soak", "30m"], "--soak needs exactly one --store"),
        (["--write-docs", "--store", "redis"], "--write-docs runs every store and fault"),
        (["--report", "/nowhere/x.html"], "there is no directory '/nowhere'"),
        (["--store", "memory", "--fault", "leader"], "memory cannot have the fault leader"),
    ],
)
def test_bad_options_are_named(arguments: list[str], text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos.run", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_promise_is_in_the_row_and_on_the_page() -> None:
    result = Result("redis", "kill", problems=["exclusion: <two> at once"])
    assert "BROKEN" in row(result)
    page = Page("title")
    page.add(result)
    text = page.text("summary")
    assert "&lt;two&gt; at once" in text
    assert "1 cases broke a promise" in text


def test_the_page_has_a_row_for_every_store_and_fault() -> None:
    """Run `./dev chaos --write-docs` after adding a store or a fault."""
    known = [
        (store, fault)
        for store, kind in TARGETS.items()
        for fault in FAULTS
        if possible(kind(), fault) in ("", missing())
    ]
    assert cases_on(PAGE.read_text(encoding="utf-8")) == known
