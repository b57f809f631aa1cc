"""The windows of `once` and the delays after a loss are never shorter than requested.

Stores read their clocks in whole milliseconds: a window that began at 72.8 ms was counted from
72 ms, so it ended up to a millisecond early. Found by simulator seed 7000511 on SQLite.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.flow.holding import full_span_ms
from lockfast.testing import ControlledStore

PLACE = c.Place("once", "job", "exclusive")
SPAN_MS = 21
BEGAN_MS = 72
"""The whole milliseconds of a clock at 72.8 ms."""


def enter(table: Table, session: str, now_ms: int, window_ms: int = 0) -> c.Reply:
    opening = c.Open(session, ttl_ms=900, owner="")
    command = c.Enter(session, 1, (PLACE,), session, False, open=opening, window_ms=window_ms)
    return table.apply(command, now_ms, now_ms * 1000)[0]


def test_a_window_lasts_until_its_last_microsecond() -> None:
    table = Table(MemoryRows())
    assert isinstance(enter(table, "a", BEGAN_MS, full_span_ms(SPAN_MS)), c.Granted)
    table.apply(c.Leave("a", 1), BEGAN_MS + 1, 0)
    # The clock shows this from 20.2 ms after the grant on.
    assert isinstance(enter(table, "b", BEGAN_MS + SPAN_MS), c.Busy)
    assert isinstance(enter(table, "c", BEGAN_MS + SPAN_MS + 1), c.Granted)


def sent_by(store: ControlledStore, monkeypatch: pytest.MonkeyPatch) -> list[c.Command]:
    """Return the list of all commands that clients send from now on."""
    sent: list[c.Command] = []
    apply = store._table.apply

    def recorded(command: c.Command) -> c.Reply:
        sent.append(command)
        return apply(command)

    monkeypatch.setattr(store._table, "apply", recorded)
    return sent


@pytest.mark.parametrize("retry_crashed", [False, True])
def test_a_job_closes_its_window_for_more_than_was_requested(
    monkeypatch: pytest.MonkeyPatch, retry_crashed: bool
) -> None:
    with ControlledStore() as store:
        sent = sent_by(store, monkeypatch)
        monkeypatch.setattr(store.clock, "now_ms", lambda: BEGAN_MS)
        client = store.connect()
        run = client.once("job", at_least=60, at_most=90, retry_crashed=retry_crashed)(lambda: 1)
        assert run() == 1
    (entered,) = (command for command in sent if isinstance(command, c.Enter))
    (left,) = (command for command in sent if isinstance(command, c.Leave))
    # With retry_crashed, the client measured the time since the grant in whole milliseconds, too.
    spans = (0, 60_002) if retry_crashed else (60_001, 0)
    assert (entered.window_ms, left.close_ms) == spans


def test_a_lock_delay_is_longer_than_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    with ControlledStore() as store:
        sent = sent_by(store, monkeypatch)
        client = store.connect()
        lease = client.lock("a", lock_delay=10).acquire()
        store.lose(lease)
    (entered,) = (command for command in sent if isinstance(command, c.Enter))
    left = next(command for command in sent if isinstance(command, c.Leave))
    assert (entered.lock_delay_ms, left.close_ms) == (10_001, 10_001)


def test_an_advance_of_the_clock_passes_a_window() -> None:
    with ControlledStore() as store:
        client = store.connect()
        job = client.once("job", at_least=300, at_most=600)(lambda: 1)
        assert job() == 1
        assert job() is None
        store.clock.advance(300)
        assert job() == 1
