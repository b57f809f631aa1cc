"""Whatever the database contains: a typed error, and no keeper fails.

One damaged byte in the companion file gave a second holder, a truncated file ended the holder, and
a session row with the process "x" stopped the keeper of any claim queued behind it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import lockfast
from lockfast import StoreError
from lockfast.core import commands as c
from lockfast.stores.sqlite import rows
from lockfast.stores.sqlite.file import SqliteFile
from lockfast.stores.sqlite.packing import UnreadableError, unpack

SEND_MS = 5000
A = c.Place("lock", "a", "exclusive")


@pytest.mark.parametrize(
    "process",
    ["x", ":::", "a:b:c:d", "boot:1:-1:5", "boot:1:0:5", f"boot:1:{10**30}:5", "\x00", "é" * 1000],
)
def test_the_keeper_behind_an_unreadable_process_lives(tmp_path: Path, process: str) -> None:
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}", ttl=0.6) as client:
        other = SqliteFile(path, "stdlib")
        opening = c.Open("other", 900, "somebody", process=process)
        assert isinstance(other.apply(c.Enter("other", 1, (A,), open=opening), SEND_MS), c.Granted)
        with client.lock("kept") as kept:
            assert client.lock("a").try_acquire() is None
            with client.lock("a").acquire(timeout=30):
                kept.check()
        other.close()


ROWS = [
    ("s\x1fx", '["x",1000,"o","","","",0,"soon"]'),
    ("s\x1fx", '["x",1000]'),
    ("s\x1fx", "not JSON"),
    ("s\x1fx", '["x",1000,"o","","","",0,0] and more'),
    ("s\x1fx", "[" * 100_000),
    ("c\x1fx\x1f1", '["x",1,[["lock"]],"holding","r","a",0,0]'),
    ("c\x1fx\x1f1", '["x",1,7,"holding","r","a",0,0]'),
    ("r\x1flock\x1fa", '["lock","a",{"exclusive":"1"},{},1]'),
    ("r\x1flock\x1fa", "null"),
    ("?\x1funknown", "[]"),
    ("", ""),
]


@pytest.mark.parametrize(("key", "text"), ROWS)
def test_a_row_that_lockfast_did_not_write(key: str, text: str) -> None:
    with pytest.raises(UnreadableError):
        unpack(key, text)


@pytest.mark.parametrize("place", ["hot", "table"])
def test_it_is_a_typed_error_until_the_database_is_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    from lockfast.stores.registry import open_maintenance, parse_url

    monkeypatch.setattr(rows, "HOT_MAX", 7500 if place == "hot" else 0)
    url = f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url, connect_timeout=0.1) as client:
        lease = client.lock("a").acquire()
        database = sqlite3.connect(tmp_path / "locks.db")
        changed = database.execute(
            "UPDATE hot SET recent = replace(recent, '\"exclusive\"', '1.5'), version = version + 1"
            if place == "hot"
            else "UPDATE rows SET v = replace(v, '\"exclusive\"', '1.5')"
        )
        assert changed.rowcount
        if place == "table":
            database.execute("UPDATE hot SET version = version + 1")
        database.commit()
        with pytest.raises(StoreError, match=r"did not write.*lockfast reset"):
            client.lock("a").try_acquire()
        maintenance = open_maintenance(parse_url(url))
        assert [found.what for found in maintenance.examine() if found.verdict == "bad"] == ["rows"]
        assert [found.found for found in maintenance.reset()] == ["1 ended", "1 freed"]
        assert [found for found in maintenance.examine() if found.verdict == "bad"] == []
        assert lease.lost.wait(30)
        with client.lock("a").acquire(timeout=30) as later:
            assert later.token > lease.token
        database.close()


def test_a_hot_row_that_is_gone(tmp_path: Path) -> None:
    from lockfast.stores.registry import open_maintenance, parse_url

    url = f"sqlite://{tmp_path}/locks.db"
    lockfast.connect(url).close()
    database = sqlite3.connect(tmp_path / "locks.db")
    database.execute("DELETE FROM hot")
    database.commit()
    database.close()
    with lockfast.connect(url, connect_timeout=0.1) as client:
        with pytest.raises(StoreError, match="lockfast reset"):
            client.lock("a").acquire()
        assert list(open_maintenance(parse_url(url)).reset())
        with client.lock("a").acquire(timeout=30):
            pass
