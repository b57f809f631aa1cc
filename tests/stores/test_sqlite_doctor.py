"""`lockfast doctor` on a SQLite database, and what is checked when one is opened after a crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import lockfast
from lockfast import StoreError
from lockfast.stores.diagnosis import Maintenance
from lockfast.stores.registry import open_maintenance, parse_url
from lockfast.stores.sqlite.file import SqliteFile
from tests.processes.crew import Crew
from tests.stores import roles


def maintenance(path: Path) -> Maintenance:
    return open_maintenance(parse_url(f"sqlite://{path}"))


def test_a_sound_database(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}") as client, client.lock("orders/42"):
        found = {one.what: one for one in maintenance(path).examine()}
        assert list(found) == ["library", "files", "gate", "pages", "rows"]
        assert {one.verdict for one in found.values()} <= {"good", "note"}
        assert found["rows"].found == "1 session, 1 claim, 1 lock in use"


def test_ended_sessions_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}") as client, client.lock("orders/42"):
        with lockfast.connect(f"sqlite://{path}") as other, other.lock("b"):
            pass
        rows = [one.found for one in maintenance(path).examine() if one.what == "rows"]
    assert rows == ["1 session, 1 claim, 1 lock in use"]


def test_a_dump_shows_everything_but_secrets(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    with lockfast.connect(f"sqlite://{path}", owner="somebody") as client:
        with client.lock("orders/42") as lease:
            (session,) = client._core.sessions()
            inbox = session.listener.inbox
            dumped = "\n".join(maintenance(path).dump())
    assert "r␟lock␟orders/42" in dumped
    assert "somebody" in dumped
    assert str(lease.token) in dumped
    address, _, secret = inbox.partition("#")
    assert address in dumped
    assert secret not in dumped


def test_after_a_crash_the_pages_are_checked(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that was closed, or is in use, is opened without the check."""
    checked: list[str] = []
    check_pages = SqliteFile._check_pages

    def check(self: SqliteFile) -> None:
        checked.append(self.label)
        check_pages(self)

    monkeypatch.setattr(SqliteFile, "_check_pages", check)
    path = crew.directory / "locks.db"
    lockfast.connect(crew.url).close()
    holder = crew.start(roles.hold)
    holder.hears("held")
    lockfast.connect(crew.url).close()
    assert checked == []
    os.kill(holder.pid, signal.SIGKILL)
    holder.finish()
    lockfast.connect(crew.url).close()
    assert checked == [f"sqlite://{path}"]


def test_damage_that_the_check_finds_is_a_typed_error(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = crew.start(roles.hold)
    holder.hears("held")
    holder.kill()
    monkeypatch.setattr(
        "lockfast.stores.sqlite.file.QUICK_CHECK", "SELECT 'row 1 missing from index'"
    )
    with pytest.raises(StoreError, match=r"damaged.*row 1 missing.*move it away"):
        lockfast.connect(crew.url)
