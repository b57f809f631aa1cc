"""The examples do what their text says."""

import os
import re
import select
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from examples.timeline import Lease, Mark, Span, Timeline, draw
from tests.docs.pages import ROOT

TESTS = "examples/test_lost_lease.py"
SVG = "{http://www.w3.org/2000/svg}"


def start(example: str, directory: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(ROOT / "examples" / example)],
        cwd=directory,
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_quickstart_runs(tmp_path: Path) -> None:
    """Every part of the quickstart works, without a warning."""
    with start("quickstart.py", tmp_path) as quickstart:
        output, _ = quickstart.communicate(timeout=30)
    assert quickstart.returncode == 0, output
    assert "refused" in output


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("timeouts.py", "not acquired: 0.1 s"),
        ("migrate_once.py", "migrations: 1\nfirst: migrate\nran: 1\nwaited: 2"),
        ("health_check.py", "refused at the start"),
        ("end_well.py", "the lock is free"),
    ],
)
def test_a_small_program_runs(example: str, says: str, tmp_path: Path) -> None:
    with start(example, tmp_path) as program:
        output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, output
    assert says in output


def test_the_tests_of_a_user_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_demo_goes_as_told(tmp_path: Path) -> None:
    """The stopped process is succeeded, told and refused, and the picture shows it."""
    with start("demo.py", tmp_path) as demo:
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, output
    assert output.count("REFUSED") == output.count("LOST") == 1
    assert "\x1b" not in output
    # Lines of different processes may be swapped on a busy machine, those of one never.
    lines = re.findall(r"^ *(\d+\.\d{3}) s  (\w+) ", output, re.MULTILINE)
    for name in ("ada", "ben", "cleo"):
        instants = [float(at) for at, who in lines if who == name]
        assert instants
        assert instants == sorted(instants)
    picture = ET.parse(tmp_path / "demo-timeline.svg").getroot()
    labels = [element.text for element in picture.iter(f"{SVG}text")]
    assert "write refused" in labels
    assert {"ada", "ben", "cleo"} <= set(labels)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_demo_leaves_no_process(how: signal.Signals, tmp_path: Path) -> None:
    """Interrupted while one of its processes is stopped, the demo ends all of them."""
    with start("demo.py", tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "(SIGSTOP)" in line:
                break
        workers = [os.pidfd_open(pid) for pid in children_of(demo.pid)]
        demo.send_signal(how)
        demo.communicate(timeout=30)
    assert len(workers) == 3
    until = time.monotonic() + 10
    try:
        for worker in workers:
            ended, _, _ = select.select([worker], [], [], max(0, until - time.monotonic()))
            assert ended, "a process of the demo lives on"
    finally:
        for worker in workers:
            os.close(worker)


def children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_timeline_shows_what_it_is_given() -> None:
    """A lane per name, a bar per lease with its token, hatching, a cross; names are escaped."""
    drawn = draw(
        Timeline(
            "who & when",
            "<test>",
            ["a<b", "c"],
            waits=[Span("c", 0.0, 1.2)],
            leases=[Lease("a<b", 1000, 0.0, 1.0, 1.5), Lease("c", 1234, 1.2, 1.4, 1.4)],
            stops=[Span("a<b", 0.1, 1.4)],
            writes=[Mark("c", 1.3)],
            refusals=[Mark("a<b", 1.5)],
        )
    )
    root = ET.fromstring(drawn)
    labels = [element.text for element in root.iter(f"{SVG}text")]
    assert {"who & when", "<test>", "a<b", "c", "…000", "…234", "write refused"} <= set(labels)
    assert "lease over: c takes over" in labels
    assert any("url(#hatch" in rect.get("fill", "") for rect in root.iter(f"{SVG}rect"))
