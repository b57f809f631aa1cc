"""Deadlock detection as a function of what was read: which claims block which."""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core.deadlock import find_cycles
from tests.core.table_driver import TableDriver


def place(name: str, mode: str) -> c.Place:
    return c.Place("lock", name, mode)


def view(driver: TableDriver, name: str) -> c.ResourceView:
    return driver.inspect(place(name, ""))


def test_a_waiter_behind_a_conversion_is_deadlocked_with_it() -> None:
    """Its mode is compatible with every holder; only the pending conversion blocks it."""
    driver = TableDriver()
    driver.enter("writer", place("book", "update"), actor="writer")
    driver.enter("reader", place("book", "shared"), actor="reader")
    driver.enter("late", place("key", "exclusive"), actor="late")
    assert isinstance(driver.convert("writer", "exclusive"), c.Queued)
    assert isinstance(driver.enter("late", place("book", "shared"), actor="late"), c.Queued)
    assert find_cycles([view(driver, "book"), view(driver, "key")]) == []
    assert isinstance(driver.enter("reader", place("key", "shared"), actor="reader"), c.Queued)
    (cycle,) = find_cycles([view(driver, "book"), view(driver, "key")])
    assert cycle.actors == {"writer", "reader", "late"}


def test_a_claim_counts_with_the_mode_that_it_has_at_this_resource() -> None:
    """A claim with several places may write one lock and read another."""
    driver = TableDriver()
    driver.enter("one", place("a", "exclusive"), place("b", "shared"), actor="one")
    driver.enter("two", place("c", "exclusive"), actor="two")
    before = view(driver, "b")
    assert isinstance(driver.enter("one", place("c", "exclusive"), actor="one"), c.Queued)
    assert isinstance(driver.enter("two", place("b", "shared"), actor="two"), c.Granted)
    # As a detector reads it that saw `two` in the queue just before it was granted.
    reader = next(claim for claim in view(driver, "b").holders if claim.session == "two")
    waiting = (reader._replace(state=c.WAITING, token=0),)
    seen = before._replace(waiting=waiting, waiting_count=1)
    assert find_cycles([view(driver, "a"), seen, view(driver, "c")]) == []
