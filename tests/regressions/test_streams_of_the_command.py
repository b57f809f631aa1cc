"""Standard streams that are closed, full, or read by nobody.

With standard error closed, `lockfast run` ended with a traceback before it ran its command; with
nobody reading it, with 141 instead of the code for what had happened; and a full disk under the
output was reported as a bug in Lockfast.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import exit_codes

LOCKFAST = [sys.executable, "-m", "lockfast"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/locks.db"


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_run_with_closed_streams(closed: tuple[int, ...], url: str, tmp_path: Path) -> None:
    """The command runs, and what it prints does not end up in a file of the store."""
    report = tmp_path / "report"
    script = f"echo to stdout; echo to stderr >&2; echo $LOCKFAST_LOCK > {report}"
    shut = " ".join(f"{number}>&-" for number in closed)
    command = [*LOCKFAST, "run", "--url", url, "nightly", "--", "sh", "-c", script]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {shut}', "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert report.read_text() == "nightly\n"
    assert done.stdout == ("" if 1 in closed else "to stdout\n")
    assert done.stderr == ("" if 2 in closed else "to stderr\n")


def _unread() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("stream", [_unread, _full])
def test_the_exit_code_does_not_depend_on_who_reads_the_message(stream: object, url: str) -> None:
    assert callable(stream)
    with lockfast.connect(url) as client, client.lock("nightly"):
        command = [*LOCKFAST, "run", "--url", url, "--no-wait", "nightly", "--", "true"]
        stderr = stream()
        done = subprocess.run(command, stderr=stderr, timeout=60)
        os.close(stderr)
    assert done.returncode == exit_codes.NOT_OBTAINED


def test_output_that_cannot_be_written_is_no_bug(url: str) -> None:
    with lockfast.connect(url) as client, client.lock("nightly"), open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*LOCKFAST, "ls", "--url", url],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == exit_codes.OUTPUT
    assert done.stderr == "lockfast: cannot write to standard output: No space left on device\n"
