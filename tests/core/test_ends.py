"""Ending a session with very many claims: in portions, so that every step is short."""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.core.table import Limits, Table
from tests.core.table_driver import CountingRows, TableDriver, lock

CLAIMS = 100_000
PORTION = Limits().ended_per_step
ROWS_PER_PLACE = 24
"""Rows read, written and scanned to remove one place and to wake or grant the next claim."""


def crowd() -> tuple[Table, CountingRows]:
    """Session `many` holds half of its locks and waits for the other half, all behind `boss`."""
    rows = CountingRows()
    table = Table(rows)
    for session in ("boss", "many", "heir"):
        table.apply(c.Open(session, 60_000, session), 1_000, 1_000)
    table.apply(c.Enter("boss", 1, (lock("hot"),)), 1_000, 1_000)
    for n in range(1, CLAIMS + 1):
        name = "hot" if n % 2 else f"cold/{n:06}"
        table.apply(c.Enter("many", n, (lock(name),)), 1_000, 1_000 + n)
    for n, name in enumerate(("hot", f"cold/{CLAIMS:06}"), 1):
        table.apply(c.Enter("heir", n, (lock(name),)), 1_000, 1_000)
    return table, rows


@pytest.mark.timeout(600)  # three hundred thousand steps, about 15 s of CPU time
def test_a_hundred_thousand_claims_end_in_short_steps() -> None:
    """Close is answered after one portion; every step touches a bounded number of rows."""
    table, rows = crowd()
    steps = 0
    reply: c.Reply = c.Done(more=True)
    while isinstance(reply, c.Done) and reply.more:
        rows.touched = 0
        reply, _ = table.apply(c.Close("many"), 1_001, 1_001)
        assert rows.touched <= ROWS_PER_PLACE * PORTION
        assert isinstance(reply, c.Done)
        assert reply.found == (steps == 0)
        steps += 1
    assert steps == -(-CLAIMS // PORTION)
    ended, _ = table.apply(c.Sessions(), 1_001, 1_001)
    assert isinstance(ended, c.SessionsReply)
    assert {view.session: view.claims for view in ended.sessions}["many"] == 0
    granted, _ = table.apply(c.Look("heir", 2), 1_001, 1_001)
    assert isinstance(granted, c.Granted)


def test_whoever_writes_next_goes_on() -> None:
    """The client that sent Close may die: keep-alives of other clients remove the rest."""
    driver = TableDriver(limits=Limits(ended_per_step=2))
    for i in range(5):
        driver.enter("many", lock(f"a{i}"))
    driver.enter("next", lock("a4"))
    assert driver.do(c.Close("many")) == c.Done(found=True, more=True)
    assert driver.look("next").look_ms == 1, "a waiter looks again at once"
    driver.renew("next", 1)
    assert isinstance(driver.look("next"), c.Queued)
    driver.renew("next", 1)
    assert isinstance(driver.look("next"), c.Granted)
    assert driver.do(c.Close("many")) == c.Done(found=False, more=False)


def test_an_ended_session_is_granted_nothing() -> None:
    """Its waiting claims are granted nothing before they are removed."""
    driver = TableDriver(limits=Limits(ended_per_step=1))
    driver.enter("many", lock("first"))
    driver.enter("holder", lock("a"))
    driver.enter("many", lock("a"))
    driver.enter("next", lock("a"))
    driver.do(c.Expel("many", "silent"))
    driver.leave("holder")
    assert driver.holders(lock("a")) <= {"next"}
    assert isinstance(driver.look("many", 2), c.Ended)
    driver.tick()
    assert driver.holders(lock("a")) == {"next"}


def test_a_conversion_of_an_ended_session_is_not_carried_out() -> None:
    """A pending upgrade is not granted after the session has ended."""
    driver = TableDriver(limits=Limits(ended_per_step=1))
    driver.enter("many", lock("first"))
    driver.enter("many", lock("a", "shared"))
    driver.enter("reader", lock("a", "shared"))
    assert isinstance(driver.convert("many", "exclusive", n=2), c.Queued)
    token = driver.inspect(lock("a")).holders[0].token
    driver.do(c.Close("many"))
    driver.table.limits = Limits(ended_per_step=0)
    driver.leave("reader")
    (left,) = driver.inspect(lock("a")).holders
    assert (left.session, left.token) == ("many", token)


@pytest.mark.parametrize("ttl_ms", [1_000, 2_000])
def test_several_expired_sessions_share_one_portion(ttl_ms: int) -> None:
    """The step that detects it marks all of them as ended; their claims are removed later."""
    driver = TableDriver(limits=Limits(ended_per_step=2))
    for session in ("s1", "s2", "s3"):
        driver.open(session, ttl_ms=ttl_ms)
        driver._numbers[session] = 0
        for i in range(2):
            driver.enter(session, lock(f"{session}/{i}"))
    driver.tick(ttl_ms)
    assert driver.told(c.WAKE_ENDED) == ["s1", "s2", "s3"]
    views = {view.session: view.claims for view in driver.do(c.Sessions()).sessions}
    assert views == {"s1": 0, "s2": 2, "s3": 2}
    driver.tick()
    driver.tick()
    assert not driver.do(c.Listing("lock")).resources
