"""The keeper's duties: what it sends, when, and what it does with the replies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lockfast.core.commands import (
    WAKE_EVENTS,
    WAKE_LOOK,
    Close,
    Command,
    Done,
    Ended,
    Expel,
    Gone,
    Granted,
    Leave,
    Look,
    Queued,
    Renew,
    Renewed,
    Reply,
    Sessions,
    SessionsReply,
    SessionView,
    Wake,
)
from lockfast.errors import StoreUnavailableError
from lockfast.flow.holding import Phase
from lockfast.flow.keeper import CLOSE_MS, LOOK_SLACK_MS, REQUEST_MS_MAX
from lockfast.flow.retry import RETRY_MS
from lockfast.ports import PROCESS_DIED, WAKE_DIED, WAKE_DISCONNECTED, WAKE_MISSED
from lockfast.runtimes.threads import ThreadSignal
from tests.flow.worlds import BLOCKER, TTL_MS, World

BEGIN_MS = 1000
EVERY_MS = 9500
"""A third of the TTL, less half of the largest jitter."""


@pytest.fixture
def world() -> World:
    return World()


def down(command: Command) -> Exception:
    return StoreUnavailableError("memory://", "connection refused")


# ── keep-alives ──────────────────────────────────────────────────────────────────────


def test_keep_alives_are_a_third_of_the_ttl_apart_less_the_jitter(world: World) -> None:
    world.keep(BEGIN_MS + 3 * EVERY_MS + 1)
    assert world.wire.times(Renew) == [BEGIN_MS + i * EVERY_MS for i in (1, 2, 3)]
    assert world.wire.commands(Renew) == [Close(world.session.id)]
    assert world.wire.closed


def test_a_keep_alive_describes_the_claims(world: World) -> None:
    held, waiting = world.held("a"), world.waiting("b", look_ms=60_000)
    world.session.deadlock_at_ms = None
    world.keep(BEGIN_MS + EVERY_MS + 1)
    renew = world.wire.commands()[0]
    assert isinstance(renew, Renew)
    assert (renew.count, renew.lowest, renew.waiting) == (2, held.n, (waiting.n,))


def test_a_request_may_take_a_third_of_the_ttl_and_at_most_two_seconds(world: World) -> None:
    world.keep(BEGIN_MS + EVERY_MS + 1)
    assert world.wire.sent[0][2] == REQUEST_MS_MAX
    short = World(ttl_ms=900)
    short.keep(BEGIN_MS + 290)
    assert short.wire.sent[0][2] == 300


def test_a_failed_keep_alive_is_repeated_with_growing_pauses_until_the_deadline(
    world: World,
) -> None:
    lease = world.held()
    deadline = world.session.snapshot.deadline_ms
    world.wire.answer = down
    world.keep(10 * TTL_MS)
    times = world.wire.times(Renew)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:4] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS]
    assert times[-1] < deadline
    assert world.wire.sent[len(times) - 1][2] <= deadline - times[-1], "no longer than the lease"
    assert lease.phase is Phase.LOST
    assert "was not renewed in time" in lease.reason


def test_the_successor_is_admitted_when_the_holder_has_stopped(world: World) -> None:
    """After a loss the keeper ends the session in the store, but not before the margin is over."""
    lease = world.held()
    deadline = world.session.snapshot.deadline_ms
    world.wire.answer = lambda command: down(command) if isinstance(command, Renew) else None
    world.keep(10 * TTL_MS)
    assert world.wire.commands(Renew) == [Expel(world.session.id, lease.reason)]
    assert world.wire.times(Expel) == [BEGIN_MS + TTL_MS]
    idle = World()
    idle.wire.answer = world.wire.answer
    idle.keep(10 * TTL_MS)
    assert idle.wire.times(Expel) == [deadline]


def test_a_session_that_the_store_has_ended_is_not_ended_again(world: World) -> None:
    lease = world.held()
    world.wire.answer = lambda command: Ended("revoked", "admin")
    world.keep(10 * TTL_MS)
    assert len(world.wire.sent) == 1
    assert (lease.phase, lease.by) == (Phase.LOST, "admin")
    assert lease.reason.endswith("ended: revoked")


def test_claims_are_listed_if_the_store_has_others(world: World) -> None:
    lease = world.held()

    def answer(command: Command) -> Reply | None:
        return Renewed(False) if isinstance(command, Renew) else None

    world.wire.answer = answer
    world.keep(BEGIN_MS + EVERY_MS + 1)
    assert lease.phase is Phase.LOST, "the store has no record of it"


def test_the_keeper_looks_just_after_the_claims_ahead_expire(world: World) -> None:
    claim = world.waiting(look_ms=5000)
    world.session.deadlock_at_ms = None

    def answer(command: Command) -> Reply | None:
        return Renewed(True, ((claim.n, Granted(18)),)) if isinstance(command, Renew) else None

    world.wire.answer = answer
    world.keep(BEGIN_MS + 6000)
    assert world.wire.times(Renew) == [BEGIN_MS + 5000 + LOOK_SLACK_MS]
    assert claim.token == 18


def test_looks_that_come_too_early_become_rarer(world: World) -> None:
    claim = world.waiting(look_ms=100)
    world.session.deadlock_at_ms = None

    def answer(command: Command) -> Reply | None:
        if not isinstance(command, Renew):
            return None
        world.session.deadlock_at_ms = None
        return Renewed(True, ((claim.n, Queued((BLOCKER,), 1)),))

    world.wire.answer = answer
    world.keep(BEGIN_MS + 1000)
    times = world.wire.times(Renew)
    pauses = [after - before for before, after in pairwise(times)]
    assert times[0] == BEGIN_MS + 100 + LOOK_SLACK_MS
    assert pauses[:4] == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 8 * RETRY_MS]


# ── silent sessions ──────────────────────────────────────────────────────────────────


def session_ahead(ttl_ms: int) -> SessionView:
    return SessionView(BLOCKER.session, "host", "", "", ttl_ms, 1000, 1, 0, "", "")


def test_a_session_ahead_that_is_not_renewed_for_its_ttl_is_expelled(world: World) -> None:
    claim = world.waiting(look_ms=10 * TTL_MS)
    ahead = session_ahead(ttl_ms=20_000)

    def answer(command: Command) -> Reply | None:
        world.session.deadlock_at_ms = None
        if isinstance(command, Renew):
            return Renewed(True, ((claim.n, Queued((BLOCKER,), 10 * TTL_MS)),))
        return SessionsReply((ahead,), False) if isinstance(command, Sessions) else None

    world.session.deadlock_at_ms = None
    world.wire.answer = answer
    world.keep(BEGIN_MS + 6 * EVERY_MS)
    first_seen = BEGIN_MS + EVERY_MS
    assert world.wire.times(Sessions)[0] - first_seen == 4 * EVERY_MS, "not within our TTL"
    expelled = [command for command in world.wire.commands() if isinstance(command, Expel)]
    assert expelled[0] == Expel(BLOCKER.session, "its keep-alives stopped", BLOCKER.renewals)


@pytest.mark.parametrize(
    "ahead",
    [session_ahead(ttl_ms=200_000), session_ahead(ttl_ms=20_000)._replace(renewals=7)],
    ids=["longer TTL", "renewed since it was seen"],
)
def test_a_session_that_may_be_alive_is_left_alone(world: World, ahead: SessionView) -> None:
    claim = world.waiting(look_ms=10 * TTL_MS)

    def answer(command: Command) -> Reply | None:
        world.session.deadlock_at_ms = None
        if isinstance(command, Renew):
            return Renewed(True, ((claim.n, Queued((BLOCKER,), 10 * TTL_MS)),))
        return SessionsReply((ahead,), False) if isinstance(command, Sessions) else None

    world.session.deadlock_at_ms = None
    world.wire.answer = answer
    world.keep(BEGIN_MS + 6 * EVERY_MS)
    assert world.wire.times(Sessions) != []
    assert world.wire.times(Expel) == []


def test_silence_is_measured_anew_after_a_reconnect(world: World) -> None:
    claim = world.waiting(look_ms=10 * TTL_MS)

    def answer(command: Command) -> Reply | None:
        world.session.deadlock_at_ms = None
        world.wire.connections += 1
        if isinstance(command, Renew):
            return Renewed(True, ((claim.n, Queued((BLOCKER,), 10 * TTL_MS)),))
        return None

    world.session.deadlock_at_ms = None
    world.wire.answer = answer
    world.keep(BEGIN_MS + 8 * EVERY_MS)
    assert world.wire.times(Sessions) == []


# ── releases ─────────────────────────────────────────────────────────────────────────


def test_a_pending_release_is_repeated_until_the_store_replies(world: World) -> None:
    lease = world.held()
    world.session.release_later(lease)
    failures = iter([down, down])

    def answer(command: Command) -> Exception | None:
        fails = next(failures, None) if isinstance(command, Leave) else None
        return fails(command) if fails is not None else None

    world.wire.answer = answer
    world.keep(BEGIN_MS + 1000)
    assert world.wire.times(Leave) == [BEGIN_MS + i * RETRY_MS for i in (0, 1, 3)]
    assert not world.session.has_pending()


def test_a_release_that_keeps_failing_does_not_delay_keep_alives(world: World) -> None:
    world.session.release_later(world.held())
    world.wire.answer = lambda command: down(command) if isinstance(command, Leave) else None
    world.keep(BEGIN_MS + EVERY_MS + 1)
    assert world.wire.times(Renew) == [BEGIN_MS + EVERY_MS]


def test_a_closed_client_gives_pending_releases_two_seconds(world: World) -> None:
    world.session.release_later(world.held())
    world.wire.answer = lambda command: down(command) if isinstance(command, Leave) else None
    world.keep(BEGIN_MS)
    # The last pause of the backoff may begin just before.
    assert BEGIN_MS + CLOSE_MS <= world.wire.times(Close)[0] <= BEGIN_MS + CLOSE_MS + 1000


def test_a_lease_past_its_max_hold_is_lost_and_left_after_the_margin(world: World) -> None:
    lease = world.held(max_hold_ms=4000)
    deadline = world.session.deadline_of(lease)
    world.keep(BEGIN_MS + 6000)
    assert lease.phase is Phase.LOST
    assert lease.lost_ms == deadline + LOOK_SLACK_MS
    assert world.wire.times(Leave) == [BEGIN_MS + 4000]


def test_a_closed_client_waits_for_a_delayed_release(world: World) -> None:
    """A lease that is lost during the closing is left after its margin, without a busy loop."""
    lease = world.held(max_hold_ms=4000)
    lost_ms = world.session.deadline_of(lease) + LOOK_SLACK_MS
    other = world.held("b")
    world.listener.at(lost_ms - 2, lambda: world.session.release_later(other))

    def answer(command: Command) -> Exception | None:
        is_down = isinstance(command, Leave) and world.clock.at_ms < lost_ms
        return down(command) if is_down else None

    world.wire.answer = answer
    world.keep(lost_ms - 1)
    assert lease.phase is Phase.LOST
    assert world.wire.times(Leave)[-1:] == world.wire.times(Close) == [BEGIN_MS + 4000]


# ── wakes ────────────────────────────────────────────────────────────────────────────


def test_a_wake_makes_the_keeper_ask_the_store(world: World) -> None:
    claim = world.waiting(look_ms=60_000)
    world.session.deadlock_at_ms = None
    world.wire.answer = lambda command: Granted(18) if isinstance(command, Look) else None
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", world.session.id, claim.n, WAKE_LOOK))
    world.keep(BEGIN_MS + 100)
    assert world.wire.times(Look) == [BEGIN_MS + 50]
    assert (claim.token, claim.granted_at_ms) == (18, BEGIN_MS + 50)


def test_a_claim_that_the_store_does_not_know_is_lost(world: World) -> None:
    claim = world.waiting(look_ms=60_000)
    world.session.deadlock_at_ms = None
    world.wire.answer = lambda command: Gone("revoked", "me") if isinstance(command, Look) else None
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", world.session.id, claim.n, WAKE_LOOK))
    world.keep(BEGIN_MS + 100)
    assert (claim.phase, claim.by) == (Phase.LOST, "me")


def test_a_reconnected_listener_causes_a_keep_alive_at_once(world: World) -> None:
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", world.session.id, 0, WAKE_MISSED))
    world.keep(BEGIN_MS + 100)
    assert world.wire.times(Renew) == [BEGIN_MS + 50]


@pytest.mark.parametrize("what", [WAKE_EVENTS, WAKE_MISSED, WAKE_DISCONNECTED])
def test_watchers_read_the_log_whenever_it_may_have_grown(world: World, what: str) -> None:
    changed = ThreadSignal()
    world.session.events_changed.append(changed.set)
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", world.session.id, 0, what))
    world.keep(BEGIN_MS + 100)
    assert changed.wait_blocking(0)


def test_the_session_of_a_process_that_died_is_expelled(world: World) -> None:
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", "s-9", 0, WAKE_DIED))
    world.keep(BEGIN_MS + 100)
    assert world.wire.commands(Close) == [Expel("s-9", PROCESS_DIED)]


def test_a_session_with_many_claims_is_expelled_in_several_steps(world: World) -> None:
    left = iter([Done(more=True), Done(more=True), Done()])
    world.wire.answer = lambda command: next(left) if isinstance(command, Expel) else None
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", "s-9", 0, WAKE_DIED))
    world.keep(BEGIN_MS + 100)
    assert world.wire.times(Expel) == 3 * [BEGIN_MS + 50]


def test_a_wake_that_cannot_be_checked_stops_nothing(world: World) -> None:
    world.wire.answer = lambda command: (
        ValueError("malformed") if isinstance(command, Look) else None
    )
    world.listener.at(BEGIN_MS + 50, lambda: Wake("", world.session.id, 1, WAKE_LOOK))
    world.keep(BEGIN_MS + EVERY_MS + 1)
    assert world.wire.times(Renew) == [BEGIN_MS + EVERY_MS]
