"""The guard of a file: order, races between processes, a writer killed at every step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockfast
from lockfast.errors import StaleTokenError
from lockfast.events import GuardAdmitted, GuardRefused
from lockfast.guards import FenceDamagedError, FileGuard, InvalidTokenError

WRITER = """
import sys
from lockfast.errors import StaleTokenError
from lockfast.guards import FileGuard
guard = FileGuard(sys.argv[1])
for token in range(int(sys.argv[2]), 301, 3):
    try:
        guard.write_text(str(token), token)
    except StaleTokenError:
        pass
"""

KILLED = """
import os, sys
from lockfast.guards import FileGuard
step = int(sys.argv[2])
def killing(function):
    def call(*arguments, **options):
        global step
        step -= 1
        if step == 0:
            os.kill(os.getpid(), 9)
        done = function(*arguments, **options)
        step -= 1
        if step == 0:
            os.kill(os.getpid(), 9)
        return done
    return call
for name in ("open", "pread", "pwrite", "fsync", "replace", "chmod"):
    setattr(os, name, killing(getattr(os, name)))
FileGuard(sys.argv[1]).write_text("new", 18)
print("done")
"""


@pytest.fixture
def guard(tmp_path: Path) -> FileGuard:
    return FileGuard(tmp_path / "report.txt")


def test_an_older_token_cannot_overwrite(guard: FileGuard) -> None:
    assert guard.floor() == 0
    guard.write_text("seventeen", 17)
    with pytest.raises(StaleTokenError, match="token 16 is older than 17"):
        guard.write_text("sixteen", 16)
    assert guard.path.read_text() == "seventeen"
    guard.write_text("again", 17)
    with pytest.raises(StaleTokenError, match="token 17 was already used"):
        guard.write_text("once", 17, once=True)
    guard.write_text("eighteen", 18, once=True)
    assert (guard.path.read_text(), guard.floor()) == ("eighteen", 18)


def test_observers_learn_what_was_admitted_and_refused(guard: FileGuard) -> None:
    seen: list[object] = []
    with lockfast.observe(seen.append):
        guard.write_text("new", 17)
        with pytest.raises(StaleTokenError):
            guard.write_text("old", 16)
    # Clients of other tests in this process may still emit events.
    of_guards = [event for event in seen if isinstance(event, GuardAdmitted | GuardRefused)]
    said = [(type(event).__name__, event.guard, event.token) for event in of_guards]
    assert said == [("GuardAdmitted", "file", 17), ("GuardRefused", "file", 16)]


def test_a_body_that_raises_changes_nothing(guard: FileGuard) -> None:
    guard.write_text("old", 17)
    with pytest.raises(ZeroDivisionError), guard.replacing(18) as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    assert (guard.path.read_text(), guard.floor()) == ("old", 17)
    assert sorted(path.name for path in guard.path.parent.iterdir()) == [
        "report.txt",
        "report.txt.fence",
    ]


def test_a_bad_token_is_refused_before_anything_is_touched(guard: FileGuard) -> None:
    with pytest.raises(InvalidTokenError):
        guard.write_text("", 0)
    assert list(guard.path.parent.iterdir()) == []


@pytest.mark.parametrize("damage", [b"12", b"not a token at all", b"0000000000000017 and more"])
def test_a_damaged_fence_admits_nobody(guard: FileGuard, damage: bytes) -> None:
    guard.write_text("old", 17)
    guard.fence.write_bytes(damage)
    with pytest.raises(FenceDamagedError, match=r"report\.txt\.fence has"):
        guard.write_text("new", 18)
    assert guard.path.read_text() == "old"


def test_the_permissions_of_the_file_stay(guard: FileGuard) -> None:
    guard.write_text("old", 17)
    guard.path.chmod(0o640)
    guard.write_text("new", 18)
    assert guard.path.stat().st_mode & 0o777 == 0o640


def test_three_processes_never_put_older_content_after_newer(guard: FileGuard) -> None:
    """They write tokens 1 to 300 in their own order; a reader only sees them rise."""
    guard.write_text("0", 1)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(guard.path), str(first)])
        for first in (1, 2, 3)
    ]
    seen = [int(guard.path.read_text())]
    while any(writer.poll() is None for writer in writers):
        seen.append(int(guard.path.read_text()))
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen == sorted(seen)
    assert (int(guard.path.read_text()), guard.floor()) == (300, 300)


def test_a_writer_killed_at_any_step_leaves_the_old_or_the_new(guard: FileGuard) -> None:
    for step in range(1, 100):
        guard.fence.unlink(missing_ok=True)
        guard.write_text("old", 17)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(guard.path), str(step)], capture_output=True
        )
        content, floor = guard.path.read_text(), guard.floor()
        assert (content, floor) in {("old", 17), ("old", 18), ("new", 18)}
        with pytest.raises(StaleTokenError):
            guard.write_text("stale", 16)
        guard.write_text("newer", 18)
        assert guard.path.read_text() == "newer"
        if killed.stdout == b"done\n":
            assert content == "new"
            break
    else:
        pytest.fail("the writer was killed a hundred times")
    assert step > 10


def test_it_works_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    FileGuard("report.txt").write_text("new", 1)
    assert (tmp_path / "report.txt").read_text() == "new"
    assert os.listdir(tmp_path).count("report.txt.fence") == 1


def test_a_symbolic_link_has_the_fence_of_its_file(tmp_path: Path) -> None:
    """The link was replaced by a file with another fence, so a stale token passed there."""
    (tmp_path / "data").mkdir()
    file, link = tmp_path / "data" / "report.txt", tmp_path / "latest"
    link.symlink_to("data/report.txt")  # which does not exist yet
    FileGuard(link).write_text("seventeen", 17)
    assert (link.is_symlink(), file.read_text()) == (True, "seventeen")
    for path in (file, link):
        with pytest.raises(StaleTokenError):
            FileGuard(path).write_text("sixteen", 16)
    FileGuard(file).write_text("eighteen", 18)
    assert (FileGuard(link).floor(), link.read_text()) == (18, "eighteen")
