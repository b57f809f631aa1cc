"""Files and directories of other users were used silently, and links were followed.

Anyone who could write to the directory could have another file overwritten through a symbolic link,
read the secrets that authenticate wakes, and forge grants. Parent directories were created with
whatever permissions the umask left.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockfast
from lockfast import StoreMisconfiguredError


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Make everything that is created without explicit permissions accessible to everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


def connect(path: Path, **options: str) -> lockfast.Client:
    query = "&".join(f"{name}={value}" for name, value in options.items())
    return lockfast.connect(f"sqlite://{path}?{query}" if query else f"sqlite://{path}")


def refused(path: Path, why: str, **options: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=why):
        connect(path, **options)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_parents_and_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "locks.db"
    with connect(path) as client, client.lock("x"):
        assert {rights(parent) for parent in (path.parent, path.parent.parent)} == {0o700}
        files = {found.name: rights(found) for found in path.parent.iterdir()}
    assert set(files) == {"locks.db", "locks.db-wal", "locks.db-shm", "locks.db-gate"}
    assert set(files.values()) == {0o600}


@pytest.mark.parametrize("suffix", ["-gate", "-wal", "-shm"])
def test_a_link_beside_the_database(tmp_path: Path, suffix: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    directory = tmp_path / "locks"
    directory.mkdir(0o700)
    (directory / f"locks.db{suffix}").symlink_to(victim)
    refused(directory / "locks.db", "symbolic link|not a regular file")
    assert victim.read_bytes() == b"precious"


def test_a_link_in_a_directory_of_others(tmp_path: Path) -> None:
    """Anyone who can change the link could redirect our locks."""
    (tmp_path / "open").mkdir(0o777)
    (tmp_path / "own").mkdir(0o700)
    (tmp_path / "open" / "locks.db").symlink_to(tmp_path / "own" / "locks.db")
    refused(tmp_path / "open" / "locks.db", "is writable by every user")
    (tmp_path / "open").chmod(0o700)
    connect(tmp_path / "open" / "locks.db").close()


@pytest.mark.parametrize(("mode", "why"), [(0o777, "by every user"), (0o770, "by its group")])
def test_a_directory_that_others_can_write_to(tmp_path: Path, mode: int, why: str) -> None:
    directory = tmp_path / "locks"
    directory.mkdir(mode)
    refused(directory / "locks.db", f"is writable {why}")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("suffix", ["", "-gate"])
def test_a_file_that_others_can_use(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "locks.db"
    connect(path).close()
    (tmp_path / f"locks.db{suffix}").chmod(0o644)
    refused(path, r"can be used by other users \(mode 0644\).*if .* chmod go=")


def test_a_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(tmp_path / "locks.db").close()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if os.getuid() == 0:  # root's files are trusted: give them to another user
        os.chown(tmp_path, 54321, -1)
    refused(tmp_path / "locks.db", r"belongs to user \d+, not to us")


def test_a_group_shares_only_if_told_so(tmp_path: Path) -> None:
    directory = tmp_path / "locks"
    refused(directory / "locks.db", r"does not exist; create it.*-m 2770", share="group")
    directory.mkdir(0o770)
    with connect(directory / "locks.db", share="group") as client, client.lock("x"):
        found = {rights(path) for path in directory.iterdir()}
    assert found == {0o660}
    refused(directory / "locks.db", "is writable by its group")
    directory.chmod(0o777)
    refused(directory / "locks.db", "is writable by every user", share="group")
    refused(directory / "locks.db", "share='everybody' is unknown", share="everybody")


def test_a_history_is_private_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = tmp_path / "history.jsonl"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    with connect(tmp_path / "locks.db") as client, client.lock("x"):
        assert rights(history) == 0o600
    history.chmod(0o666)
    refused(tmp_path / "locks.db", "can be used by other users")
    history.rename(tmp_path / "elsewhere")
    history.symlink_to(tmp_path / "elsewhere")
    refused(tmp_path / "locks.db", "symbolic link")
