"""A session and its claims, driven directly: what its keeper is told after each step."""

from __future__ import annotations

import pytest

from lockfast.core.commands import Granted, Queued
from lockfast.flow.acquire import lost_error
from lockfast.flow.holding import LeaseState, Phase
from lockfast.flow.session import (
    BEHIND_OTHERS_PER_RENEWAL,
    DEADLOCK_EVERY_MS_MAX,
    WAITING_PER_RENEWAL,
    Session,
)
from lockfast.flow.session_claims import DEADLOCK_AFTER_MS
from lockfast.flow.session_life import KeeperState
from tests.flow.worlds import BLOCKER, TTL_MS, Clock, World


@pytest.fixture
def world() -> World:
    return World()


# ── waiting ──────────────────────────────────────────────────────────────────────────


def test_a_waiting_claim_is_watched_over_and_named_until_it_is_granted(world: World) -> None:
    claim = world.waiting()
    assert world.listener.watched[claim.n] == (BLOCKER,)
    assert world.session.proof().waiting == (claim.n,)
    world.session.granted(claim, Granted(18), world.clock.at_ms)
    assert world.listener.watched[claim.n] == ()
    proof = world.session.proof()
    assert proof.waiting == ()
    assert proof.held == {claim.n: 18}


def test_only_the_first_claim_in_a_queue_is_named(world: World) -> None:
    """The claims behind it are behind others of the same session."""
    first, second, other = world.waiting("a"), world.entering("a"), world.waiting("b")
    own = BLOCKER._replace(session=world.session.id, n=first.n)
    world.session.queued(second, Queued((own,), 5000))
    assert world.session.proof().waiting == (first.n, other.n)
    world.session.release_later(first)
    assert world.session.proof().waiting == (second.n, other.n)


def test_claims_directly_behind_other_sessions_are_named_as_well(world: World) -> None:
    """One of them may be ahead of the first: only it shows whether the session ahead is alive."""
    claims = [world.waiting("a").n for _ in range(2 + BEHIND_OTHERS_PER_RENEWAL)]
    first, *others = claims
    assert world.session.proof().waiting == (first, *others[:-1])
    assert world.session.proof().waiting == (first, others[-1])
    assert world.session.proof().waiting == (first, *others[:-1])


def test_keep_alives_take_turns_with_more_queues_than_one_can_name(world: World) -> None:
    claims = [world.waiting(f"lock/{i}").n for i in range(WAITING_PER_RENEWAL + 6)]
    assert world.session.proof().waiting == tuple(claims[:WAITING_PER_RENEWAL])
    assert world.session.proof().waiting == tuple(claims[WAITING_PER_RENEWAL:])
    assert world.session.proof().waiting == tuple(claims[:WAITING_PER_RENEWAL])


def test_the_keeper_looks_when_the_claims_ahead_of_the_first_one_expire(world: World) -> None:
    first = world.waiting()
    assert world.session.look_at_ms == world.clock.at_ms + 5000
    world.session.queued(first, Queued((BLOCKER,), 2000))
    assert world.session.look_at_ms == world.clock.at_ms + 2000
    world.session.queued(world.entering(), Queued((BLOCKER,), 1000))
    assert world.session.look_at_ms == world.clock.at_ms + 2000, "not for the second in the queue"


def test_a_wake_missed_while_entering_becomes_a_look(world: World) -> None:
    claim = world.entering()
    world.session.wakes_missed()
    world.session.queued(claim, Queued((), 5000))
    assert [wake.n for wake in world.session.take_inbox()] == [claim.n]
    world.session.queued(claim, Queued((), 5000))
    assert world.session.take_inbox() == []


def test_searches_for_a_deadlock_become_rarer(world: World) -> None:
    world.held("a")
    world.waiting("b")
    began = world.clock.at_ms
    due = []
    for _ in range(4):
        assert world.session.deadlock_at_ms is not None
        world.clock.at_ms = world.session.deadlock_at_ms
        due.append(world.clock.at_ms - began)
        assert world.session.start_of_deadlock_look() == [("lock", "a"), ("lock", "b")]
        assert world.session.start_of_deadlock_look() == [], "not due again"
    assert due[:3] == [DEADLOCK_AFTER_MS, 3 * DEADLOCK_AFTER_MS, 9 * DEADLOCK_AFTER_MS]
    assert due[3] == due[2] + DEADLOCK_EVERY_MS_MAX


def test_no_search_for_a_deadlock_without_a_waiting_claim(world: World) -> None:
    world.held("a")
    claim = world.waiting("b")
    world.session.release_later(claim)
    world.clock.at_ms += DEADLOCK_AFTER_MS
    assert world.session.start_of_deadlock_look() == []
    assert world.session.deadlock_at_ms is None


# ── grants and losses ────────────────────────────────────────────────────────────────


def test_a_grant_without_a_mode_leaves_the_requested_one(world: World) -> None:
    claim = world.held()
    assert claim.mode == "exclusive"
    world.session.granted(claim, Granted(18, mode="shared"), world.clock.at_ms)
    assert claim.mode == "shared"


def test_a_late_grant_does_not_revive_a_released_claim(world: World) -> None:
    claim = world.waiting()
    world.session.release_later(claim)
    world.session.granted(claim, Granted(18), world.clock.at_ms)
    assert claim.phase is Phase.RELEASED
    assert world.session.proof().held == {}


def test_a_bounded_lease_ends_by_the_clock_alone(world: World) -> None:
    claim = world.held(max_hold_ms=4000)
    deadline = world.session.deadline_of(claim)
    assert world.clock.at_ms < deadline < world.clock.at_ms + 4000
    world.clock.at_ms = deadline - 1
    assert world.session.state_of(claim) is LeaseState.HELD
    assert world.session.past_max_hold(world.clock.at_ms) == []
    world.clock.at_ms = deadline
    assert world.session.past_max_hold(world.clock.at_ms) == [claim]
    assert world.session.state_of(claim) is LeaseState.LOST
    assert not world.session.has_bounded()


def test_a_loss_says_how_long_ago_it_was(world: World) -> None:
    claim = world.held()
    world.session.lost(claim, "gone", by="admin")
    world.clock.at_ms += 340
    error = lost_error(claim)
    assert error.ago_ms == 340
    assert error.by == "admin"
    assert error.reason == "gone (by admin)"
    assert error.session == world.session.id


def test_work_has_stopped_only_after_the_last_holder_has(world: World) -> None:
    one, two = world.held("a"), world.held("b")
    idle = world.held("c")
    world.session.release_later(idle)
    world.session.end("it expired")
    world.session.work_has_stopped(idle)
    world.session.work_has_stopped(one)
    assert not world.session.work_stopped.is_set()
    assert world.session.work_left_ms() > 0
    world.session.work_has_stopped(two)
    assert world.session.work_stopped.is_set()
    assert world.session.work_left_ms() == 0


# ── opening and ending ───────────────────────────────────────────────────────────────


def test_a_session_that_has_ended_is_not_opened_by_a_late_reply() -> None:
    session = Session(Clock(), TTL_MS, "owner", "")
    assert session.opening() is not None
    session.end("closed")
    session.opened()
    assert not session.snapshot.opened


def test_an_opening_that_never_arrived_starts_no_deadline() -> None:
    clock = Clock()
    session = Session(clock, TTL_MS, "owner", "")
    assert session.opening() is not None
    assert session.opening() is not None
    session.opening_refused()
    assert session.was_sent(), "the other request may have arrived"
    session.opening_refused()
    assert not session.was_sent()
    clock.at_ms += 10 * TTL_MS
    assert session.alive()


def test_a_reply_to_a_keep_alive_after_the_deadline_is_too_late(world: World) -> None:
    sent_ms = world.clock.at_ms
    deadline = world.session.snapshot.deadline_ms
    world.clock.at_ms = deadline - 1
    assert world.session.renewed(sent_ms)
    world.clock.at_ms = deadline
    assert not world.session.renewed(sent_ms)
    assert not world.session.alive()


def test_only_the_first_failed_keep_alive_makes_leases_uncertain(world: World) -> None:
    lease = world.held()
    assert world.session.unconfirmed()
    assert not world.session.unconfirmed()
    assert world.session.state_of(lease) is LeaseState.UNCERTAIN
    assert world.session.renewed(world.clock.at_ms)
    assert world.session.state_of(lease) is LeaseState.HELD


def test_closing_waits_only_for_a_keeper_that_has_something_to_send(world: World) -> None:
    assert not world.session.close(), "it has no keeper"
    world.session.keeper = KeeperState.RUNNING
    stopped: list[str] = []
    assert world.session.close(lambda: stopped.append("stopped"))
    world.session.keeper_stopped()
    assert stopped == ["stopped"]
    assert not world.session.close(), "its keeper has stopped"
    unsent = Session(Clock(), TTL_MS, "owner", "")
    unsent.keeper = KeeperState.RUNNING
    unsent.end("closed")
    assert not unsent.close()
