"""Locks acquired in both orders are reported, once, with both places."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lockfast.flow import lock_order
from lockfast.flow.holding import Holding
from lockfast.flow.lock_order import LockOrder
from tests.flow.worlds import World


class Orders:
    """One client that acquires locks, and what it is warned of."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._world = World()
        self._order = LockOrder(threading.RLock())
        self._core: Any = SimpleNamespace(sessions=lambda: [self._world.session])
        self._log = caplog
        caplog.set_level(logging.WARNING)

    def take(self, name: str, actor: str = "x") -> Holding:
        holding = self._world.held(name, actor)
        self._order.took(self._core, holding)
        return holding

    def release(self, *holdings: Holding) -> None:
        for holding in holdings:
            self._world.session.release_later(holding)

    def nested(self, outer: str, inner: str) -> None:
        self.release(self.take(outer), self.take(inner))

    def warnings(self) -> list[str]:
        return [record.getMessage() for record in self._log.records]


@pytest.fixture
def orders(caplog: pytest.LogCaptureFixture) -> Orders:
    return Orders(caplog)


def test_the_reverse_order_is_reported_once_with_both_places(orders: Orders) -> None:
    orders.nested("a", "b")
    orders.nested("a", "b")
    assert orders.warnings() == []
    orders.nested("b", "a")
    orders.nested("b", "a")
    (warning,) = orders.warnings()
    assert warning.startswith("lock order: 'a' was acquired while holding 'b' at ")
    assert ", and 'b' while holding 'a' at " in warning
    assert warning.count(f"{__file__}:") == 2


def test_a_cycle_through_other_locks_held_is_reported(orders: Orders) -> None:
    orders.release(orders.take("a"), orders.take("b"), orders.take("c"))
    orders.nested("c", "a")
    assert len(orders.warnings()) == 1


def test_locks_of_others_and_of_one_name_have_no_order(orders: Orders) -> None:
    first = orders.take("a", "x")
    second = orders.take("b", "y")
    orders.release(first, second)
    third = orders.take("b", "x")
    orders.release(orders.take("a", "y"), third)
    orders.nested("a", "a")
    orders.nested("a", "a")
    orders.release(orders.take("b", ""), orders.take("a", ""))
    assert orders.warnings() == []


def test_a_released_lock_has_no_order(orders: Orders) -> None:
    orders.release(orders.take("a"))
    orders.nested("b", "c")
    orders.release(orders.take("b"))
    orders.nested("c", "a")
    orders.nested("a", "b")
    assert orders.warnings() == []


def test_the_order_seen_least_recently_is_forgotten(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_order, "ORDERS_MAX", 3)
    for outer, inner in ("ab", "cd", "ef", "ab", "gh"):
        orders.nested(outer, inner)
    orders.nested("b", "a")
    assert len(orders.warnings()) == 1, "a before b was seen again"
    orders.nested("d", "c")
    assert len(orders.warnings()) == 1, "c before d was forgotten"
