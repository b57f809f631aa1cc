"""Pending commands: one per claim, in order, some of them not before an instant."""

from __future__ import annotations

from lockfast.core.commands import Convert, Leave
from lockfast.flow.outbox import Outbox

ONE, TWO = Leave("s", 1), Leave("s", 2)


def test_commands_leave_in_the_order_of_arrival() -> None:
    outbox = Outbox()
    outbox.put(2, TWO)
    outbox.put(1, ONE)
    assert outbox.next(0) == (2, TWO)
    outbox.sent(2, TWO)
    assert outbox.next(0) == (1, ONE)
    outbox.sent(1, ONE)
    assert outbox.next(0) is None
    assert not outbox


def test_a_command_that_must_wait_lets_others_pass() -> None:
    outbox = Outbox()
    outbox.put(1, ONE, not_before_ms=500)
    assert outbox.due_ms() == 500
    assert outbox.next(499) is None
    assert outbox.next(500) == (1, ONE)
    outbox.put(2, TWO)
    assert outbox.next(0) == (2, TWO)
    assert outbox.due_ms() == 0


def test_a_command_need_not_wait_once_its_holder_has_stopped() -> None:
    outbox = Outbox()
    outbox.put(1, ONE, not_before_ms=500)
    outbox.put(2, TWO, not_before_ms=600)
    assert outbox.send_now(1)
    assert not outbox.send_now(1), "it does not wait any more"
    assert outbox.next(0) == (1, ONE)
    outbox.sent(1, ONE)
    outbox.send_all_now()
    assert outbox.next(0) == (2, TWO)


def test_a_reply_to_an_older_command_does_not_remove_a_newer_one() -> None:
    outbox = Outbox()
    older = Convert("s", 1, 1, "shared")
    outbox.put(1, older)
    outbox.put(1, ONE)
    outbox.sent(1, older)
    assert outbox.next(0) == (1, ONE)
    outbox.add(1, older)
    assert outbox.next(0) == (1, ONE), "one is pending"
    assert 1 in outbox
    outbox.clear()
    assert 1 not in outbox
    assert outbox.due_ms() is None
