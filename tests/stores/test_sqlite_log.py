"""The log of the embedded store: kept while somebody reads it, and never with a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockfast.core import commands as c
from lockfast.core.rows import LOG_KEPT_MS
from lockfast.stores.sqlite import file
from lockfast.stores.sqlite.file import SqliteFile

SEND_MS = 5000
SESSION_MS = 10 * LOG_KEPT_MS


class TableDriver:
    """A lock database with a clock that the test sets."""

    def __init__(self, path: Path) -> None:
        self.now_ms = 1000
        self._file = SqliteFile(path, "stdlib")
        self._n = 0
        self._file.apply(c.Open("s", SESSION_MS, "owner"), SEND_MS)

    def lock_and_leave(self) -> None:
        """Two events."""
        self._n += 1
        place = c.Place("lock", "a", "exclusive")
        granted = self._file.apply(c.Enter("s", self._n, (place,)), SEND_MS)
        assert isinstance(granted, c.Granted)
        self._file.apply(c.Leave("s", self._n, (place,)), SEND_MS)

    def watch(self, on: bool) -> None:
        assert self._file.apply(c.Watch("s", on), SEND_MS) == c.Done()

    def events(self, after: int | None = 0) -> c.EventsReply:
        reply = self._file.apply(c.Events(after), SEND_MS)
        assert isinstance(reply, c.EventsReply)
        return reply

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TableDriver]:
    clock: Callable[[], int] = lambda: made.now_ms if made is not None else 0  # noqa: E731
    made: TableDriver | None = None
    monkeypatch.setattr(file, "now_ms", clock)
    made = TableDriver(tmp_path / "locks.db")
    yield made
    made.close()


def positions(reply: c.EventsReply) -> list[int]:
    return [event.position for event in reply.events]


def test_it_begins_with_the_first_look_and_positions_count_from_the_beginning(
    driver: TableDriver,
) -> None:
    driver.lock_and_leave()
    assert driver.events(None) == c.EventsReply((), 2, 3, False)
    driver.lock_and_leave()
    assert positions(driver.events()) == [3, 4]


def test_whoever_comes_back_in_time_has_missed_nothing(driver: TableDriver) -> None:
    driver.events(None)
    for _ in range(10):
        driver.lock_and_leave()
        driver.now_ms += LOG_KEPT_MS // 2 - 1
        driver.events(None)
    assert positions(driver.events()) == list(range(1, 21))


def test_it_is_dropped_when_nobody_has_looked_for_long(driver: TableDriver) -> None:
    driver.events(None)
    for _ in range(100):  # more than fits into the hot row
        driver.lock_and_leave()
    driver.now_ms += LOG_KEPT_MS
    driver.lock_and_leave()
    assert driver.events() == c.EventsReply((), 202, 203, False)
    driver.lock_and_leave()
    assert positions(driver.events()) == [203, 204]


def test_it_stays_while_a_session_watches_however_rarely_that_looks(driver: TableDriver) -> None:
    driver.watch(True)
    driver.events(None)
    driver.now_ms += 2 * LOG_KEPT_MS
    driver.lock_and_leave()
    assert positions(driver.events()) == [1, 2]
    driver.watch(False)
    driver.now_ms += LOG_KEPT_MS
    driver.lock_and_leave()
    assert positions(driver.events()) == []
