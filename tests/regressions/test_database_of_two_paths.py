"""A lock database reached by two paths was two databases: two holders of each lock.

SQLite finds the write-ahead log by its path, and so did the former companion file. A database with
a second hard link, or mounted as a single file into a container, is refused.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lockfast
from lockfast import StoreMisconfiguredError
from lockfast.stores.sqlite import filesystem


def test_hard_links_are_refused_by_every_name(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir(0o700)
    with lockfast.connect(f"sqlite://{tmp_path}/one/locks.db") as client, client.lock("a"):
        os.link(tmp_path / "one" / "locks.db", tmp_path / "other" / "locks.db")
        with pytest.raises(StoreMisconfiguredError, match=r"has 2 hard links.*remove the other"):
            lockfast.connect(f"sqlite://{tmp_path}/other/locks.db")
    with pytest.raises(StoreMisconfiguredError, match="has 2 hard links"):
        lockfast.connect(f"sqlite://{tmp_path}/one/locks.db")
    (tmp_path / "other" / "locks.db").unlink()
    lockfast.connect(f"sqlite://{tmp_path}/one/locks.db").close()


def test_a_file_that_is_a_mount_point_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locks.db"
    lockfast.connect(f"sqlite://{path}").close()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        f"30 27 254:0 /host/locks.db {path} rw,relatime - ext4 /dev/vda rw\n"
    )
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    with pytest.raises(StoreMisconfiguredError, match=r"single file.*mount the directory"):
        lockfast.connect(f"sqlite://{path}")
