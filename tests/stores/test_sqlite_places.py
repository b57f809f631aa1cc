"""Invalid places for a lock database: a typed error that says what to do, and full recovery."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.stores.sqlite import file, filesystem, processes
from tests.processes.crew import Crew
from tests.stores import roles


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def works(path: Path, driver: str = "stdlib") -> int:
    """Acquire a lock in a database, and return its token."""
    with lockfast.connect(f"sqlite://{path}?driver={driver}") as client:
        with client.lock("a").acquire(timeout=10) as lease:
            return lease.token


def refused(path: Path, kind: type[StoreError], why: str) -> StoreError:
    """Fail to connect, and check that nothing is left open."""
    before = descriptors()
    with pytest.raises(kind, match=why) as caught:
        lockfast.connect(f"sqlite://{path}")
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)
    assert descriptors() == before
    return caught.value


def write_private(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)


# ── rights ───────────────────────────────────────────────────────────────────────────


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here already")
    path = tmp_path / "file" / "locks.db"
    refused(path, StoreMisconfiguredError, "the path cannot be used")
    (tmp_path / "file").unlink()
    works(path)


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "locks.db").mkdir()
    refused(tmp_path / "locks.db", StoreMisconfiguredError, "is a directory; name a file in it")
    (tmp_path / "locks.db").rmdir()
    works(tmp_path / "locks.db")


def test_a_name_too_long(tmp_path: Path) -> None:
    refused(tmp_path / ("x" * 300), StoreMisconfiguredError, "the path cannot be used")


@pytest.mark.parametrize(
    ("number", "kind", "why"),
    [
        (errno.EACCES, StoreMisconfiguredError, "no right to write"),
        (errno.EPERM, StoreMisconfiguredError, "no right to write"),
        (errno.EROFS, StoreMisconfiguredError, "no right to write"),
        (errno.ENOSPC, StoreUnavailableError, "disk is full"),
        (errno.EDQUOT, StoreUnavailableError, "disk is full"),
        (errno.EMFILE, StoreUnavailableError, "no file descriptors left"),
        (errno.EIO, StoreUnavailableError, "cannot be opened"),
    ],
)
@pytest.mark.parametrize("which", ["locks.db", "locks.db-gate"])
def test_a_file_that_cannot_be_opened(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
    number: int,
    kind: type[StoreError],
    why: str,
) -> None:
    open_file: Callable[..., int] = os.open

    def fail(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith(which):
            raise OSError(number, os.strerror(number), str(path))
        return open_file(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", fail)
    refused(tmp_path / "locks.db", kind, why)
    monkeypatch.undo()
    works(tmp_path / "locks.db")


RIGHTS = {
    "a directory of another": (0o700, None, "right"),
    "a directory that cannot be written to": (0o755, None, "right"),
    "a directory that cannot be searched": (0o744, None, "right"),
    "a directory that everybody can write to": (0o777, 0o600, "writable by every user"),
    "a file of another": (0o755, 0o600, "right"),
    "a file that everybody can read": (0o755, 0o644, "right|used by other users"),
}
"""Permissions of the directory and of any files in it, and what the error says."""


@pytest.mark.parametrize("what", RIGHTS)
def test_a_user_without_rights(open_crew: Crew, what: str) -> None:
    """Tested with a process of another user; once it has the permissions, it works."""
    directory = open_crew.directory / "locks"
    directory.mkdir()
    of_directory, of_files, why = RIGHTS[what]
    if of_files is not None:
        works(directory / "locks.db")
        for path in directory.iterdir():
            path.chmod(for_others(of_files))
    directory.chmod(for_others(of_directory))
    open_crew.url = f"sqlite://{directory / 'locks.db'}"
    nobody = open_crew.start(roles.use_as_nobody)
    nobody.hears("ready")
    nobody.tell("try")
    told = " ".join(nobody.hears("StoreMisconfiguredError"))
    assert str(directory) in told
    assert re.search(why, told)
    directory.chmod(0o700)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o700)
        if os.getuid() == 0:
            os.chown(path, roles.NOBODY, roles.NOBODY)
    nobody.tell("try")
    nobody.hears("held")


def for_others(rights: int) -> int:
    """Only root can become another user; anyone else removes permissions of its own."""
    return rights if os.getuid() == 0 else (rights & 7) * 0o111


# ── file systems ─────────────────────────────────────────────────────────────────────

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / {here}/net rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 0:41 / {here}/net/local rw,relatime master:3 propagate_from:2 - ext4 /dev/vdb rw
32 27 0:42 / {here}/with\\040space rw - cifs //server/share rw
33 27 0:43 / {here}/covered rw - nfs server:/export rw
34 27 0:44 / {here}/covered rw - tmpfs tmpfs rw
35 27 0:45 / {here}/home rw - fuse.sshfs me@server:/home rw
36 27 0:46 / {here}/back\\134slash rw - 9p host rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS.format(here=tmp_path))
    monkeypatch.setattr(filesystem, "MOUNTS", path)


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("net", "nfs4"),
        ("net/deep/inside", "nfs4"),
        ("with space", "cifs"),
        ("home", "fuse.sshfs"),
        ("back\\slash", "9p"),
    ],
)
def test_a_network_file_system_is_refused(
    tmp_path: Path, mounts: None, directory: str, kind: str
) -> None:
    path = tmp_path / directory / "locks.db"
    error = refused(path, StoreMisconfiguredError, "network file system")
    assert f"({kind})" in str(error)
    assert "local disk" in str(error)
    assert not path.exists()


@pytest.mark.parametrize("directory", ["net/local", "network", "net2", "covered", "elsewhere"])
def test_a_local_file_system_beside_a_network_one_is_not(
    tmp_path: Path, mounts: None, directory: str
) -> None:
    works(tmp_path / directory / "locks.db")


def test_a_link_is_followed_to_where_the_file_is(tmp_path: Path, mounts: None) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "net")
    with pytest.raises(StoreMisconfiguredError, match="network file system"):
        lockfast.connect(f"sqlite://{tmp_path / 'link' / 'locks.db'}")


def test_a_system_that_does_not_tell_its_mounts_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "nothing")
    works(tmp_path / "locks.db")


# ── other contents ───────────────────────────────────────────────────────────────────


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    write_private(path, b"certainly not a database\n" * 1000)
    error = refused(path, StoreError, "damaged or not a database")
    assert "move it away" in str(error)
    path.rename(tmp_path / "away")
    works(path)


@pytest.mark.parametrize("driver", ["stdlib", "apsw"])
def test_a_damaged_database(tmp_path: Path, driver: str) -> None:
    """Its header is valid but its pages are not; after it is created again, tokens still rise."""
    path = tmp_path / "locks.db"
    before = works(path, driver)
    content = path.read_bytes()
    path.write_bytes(content[:100] + os.urandom(len(content) - 100))
    with pytest.raises(StoreError, match="damaged") as caught:
        works(path, driver)
    assert "tokens go on rising" in str(caught.value)
    path.unlink()
    assert works(path, driver) > before


def test_a_damaged_log_of_writes_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    before = works(path)
    write_private(tmp_path / "locks.db-wal", os.urandom(50_000))
    assert works(path) > before


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    write_private(path, b"")
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE accounts (name TEXT)")
    database.close()
    content = path.read_bytes()
    refused(path, StoreMisconfiguredError, r"another program.*a database of their own")
    assert path.read_bytes() == content


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    before = works(path)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 7")
    database.close()
    error = refused(path, StoreMisconfiguredError, "has schema 7, this release uses 2")
    assert "same release" in str(error)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 2")
    database.close()
    assert works(path) > before


def test_two_libraries_on_one_file_are_refused(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(f"{url}?driver=apsw") as client, client.lock("a"):
        with pytest.raises(StoreMisconfiguredError, match=r"open through apsw.*use one"):
            lockfast.connect(url)
        client.inspect("a")
    works(tmp_path / "locks.db", "stdlib")
    works(tmp_path / "locks.db", "apsw")


# ── time ─────────────────────────────────────────────────────────────────────────────


def test_a_reboot_ends_every_session_and_tokens_go_on_rising(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    client = lockfast.connect(url, ttl=3600)
    lease = client.lock("a").acquire()
    # As a power cut leaves it: no process has closed anything.
    (tmp_path / "after").mkdir()
    for path in tmp_path.glob("locks.db*"):
        write_private(tmp_path / "after" / path.name, path.read_bytes())
    client.close()
    assert lease.lost.is_set()
    monkeypatch.setattr(processes, "boot_id", lambda: "another boot")
    with lockfast.connect(f"sqlite://{tmp_path}/after/locks.db") as rebooted:
        assert rebooted.sessions() == []
        with rebooted.lock("a").acquire(timeout=0) as later:
            assert later.token > lease.token


@pytest.mark.parametrize("back_s", [1, 3600, 10**9])
def test_tokens_rise_though_the_wall_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back_s: int
) -> None:
    path = tmp_path / "locks.db"
    tokens = [works(path)]
    now_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() - back_s * 10**9)
    tokens += [works(path), works(path)]
    monkeypatch.undo()
    tokens.append(works(path))
    assert tokens == sorted(set(tokens))


# ── nothing is left behind ───────────────────────────────────────────────────────────


def test_clients_of_one_file_share_it_and_leave_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    for _ in range(3):
        clients = [lockfast.connect(f"sqlite://{tmp_path}/locks.db") for _ in range(5)]
        (tmp_path / "link.db").unlink(missing_ok=True)
        (tmp_path / "link.db").symlink_to(tmp_path / "locks.db")
        clients.append(lockfast.connect(f"sqlite://{tmp_path}/link.db"))
        files = {id(client._core.store._file) for client in clients}  # type: ignore[attr-defined]
        assert len(files) == 1
        for client in clients:
            with client.lock("a"):
                pass
            client.close()
    assert descriptors() == before
    assert file._open_files == {}


def test_the_file_does_not_grow_with_use(quick_path: Path) -> None:
    with lockfast.connect(f"sqlite://{quick_path}/locks.db") as client:
        for i in range(3000):
            client.lock(f"lock {i % 50}").acquire().release()
        sizes = {path.name: path.stat().st_size for path in quick_path.glob("locks.db*")}
    assert sizes["locks.db-wal"] < 3 * file.CHECKPOINT_PAGES * 4096
    assert sizes["locks.db"] < 3 * file.CHECKPOINT_PAGES * 4096


def test_windows_of_once_survive_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite://{tmp_path}/locks/locks.db"
    boot, wall_ns = ["first"], [time.time_ns()]
    monkeypatch.setattr(processes, "boot_id", lambda: boot[0])
    monkeypatch.setattr(file.time, "time_ns", lambda: wall_ns[0])

    def run_after(name: str, passed_s: int) -> bool:
        boot[0], wall_ns[0] = name, wall_ns[0] + passed_s * 1_000_000_000
        with lockfast.connect(url) as client:
            return client.once("nightly", at_least=300, at_most=3600)(lambda: "ran")() == "ran"

    assert run_after("first", 0)
    assert not run_after("second", 100)
    assert not run_after("third", 150)
    assert not run_after("wall-clock-set-back", -3600)
    assert run_after("window-over", 3600)
    assert not run_after("window-over", 0)
