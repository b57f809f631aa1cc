"""The rules of the lock table, each as a short story of a few sessions at one desk."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.numbers import forget_below, is_seen, see
from lockfast.core.rows import LOG_KEPT, Session, rank_of
from lockfast.core.table import ENDED_KEPT_MS, REAPED_PER_STEP, Limits, just_before
from lockfast.sim.model import checksum_of
from tests.core.desk import CountingRows, Desk, lock, permits, tree

X = lock("x")
READ = lock("x", "shared")
UPDATE = lock("x", "update")


# ── the line ─────────────────────────────────────────────────────────────────────────


def test_claims_are_served_in_order_of_arrival() -> None:
    """Each release hands over to the longest waiter, with one wake and a higher token."""
    desk = Desk()
    people = ["ann", "bob", "cat", "dan"]
    replies = [desk.enter(person, X) for person in people]
    assert [type(reply) for reply in replies] == [c.Granted, c.Queued, c.Queued, c.Queued]
    tokens = [replies[0].token]
    for person, heir in pairwise(people):
        desk.leave(person)
        assert [(wake.what, wake.session) for wake in desk.wakes] == [(c.WAKE_GRANTED, heir)]
        tokens.append(desk.wakes[0].token)
        assert desk.look(heir).token == tokens[-1]
    assert tokens == sorted(set(tokens))


def test_a_waiter_is_told_who_is_directly_ahead() -> None:
    """The first in line sees the holder, every other the one before it."""
    desk = Desk()
    desk.enter("ann", X)
    first = desk.enter("bob", X)
    second = desk.enter("cat", X)
    assert [(who.session, who.held) for who in first.ahead] == [("ann", True)]
    assert [(who.session, who.held) for who in second.ahead] == [("bob", False)]
    assert first.ahead[0].owner == "ann@host"


def test_a_waiter_looks_again_when_the_one_ahead_is_over() -> None:
    """`look_ms` is the rest of the TTL or of max_hold, whichever ends first."""
    desk = Desk()
    desk.enter("ann", X)
    assert desk.enter("bob", X).look_ms == 60_000
    desk.wait(1_000)
    desk.enter("cat", lock("y"), max_hold_ms=500)
    assert desk.look("bob").look_ms == 59_000
    assert desk.enter("dan", lock("y")).look_ms == 500


def test_whoever_loses_the_one_ahead_is_told_to_look() -> None:
    """A waiter that gives up names its follower, who now watches another."""
    desk = Desk()
    for person in ("ann", "bob", "cat"):
        desk.enter(person, X)
    desk.leave("bob")
    assert desk.told(c.WAKE_LOOK) == ["cat"]
    assert [who.session for who in desk.look("cat").ahead] == ["ann"]


def test_a_head_start_passes_those_who_wait() -> None:
    """Priority is a head start in the line."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    desk.wait(100)
    desk.enter("cat", X, head_start_ms=500)
    assert desk.told(c.WAKE_LOOK) == ["bob"]
    assert desk.waiting(X) == ["cat", "bob"]


def test_a_head_start_is_used_up_by_time() -> None:
    """Whoever has waited longer than the head start stays ahead: nobody waits for ever."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    desk.wait(501)
    desk.enter("cat", X, head_start_ms=500)
    assert desk.waiting(X) == ["bob", "cat"]


def test_a_head_start_never_displaces_a_holder() -> None:
    """The holder stays, whatever comes."""
    desk = Desk()
    held = desk.enter("ann", X)
    assert isinstance(desk.enter("bob", X, head_start_ms=1_000_000), c.Queued)
    assert desk.look("ann").token == held.token


def test_a_waiter_is_told_of_a_holder_that_came_in_ahead() -> None:
    """With a head start one may join the holders; the first in line has to watch it too."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", X)
    assert isinstance(desk.enter("cat", READ, head_start_ms=9), c.Granted)
    assert desk.told(c.WAKE_LOOK) == ["bob"]
    assert {who.session for who in desk.look("bob").ahead} == {"ann", "cat"}


def test_a_try_that_fails_leaves_nothing_behind() -> None:
    """`queue=False` holds now or not at all."""
    desk = Desk()
    desk.enter("ann", X)
    desk.open("bob")
    rows = len(desk.rows)
    busy = desk.do(c.Enter("bob", 1, (X, lock("y")), queue=False))
    assert [who.session for who in busy.ahead] == ["ann"]
    assert len(desk.rows) == rows
    assert desk.do(c.Claims("bob")) == c.ClaimsReply(())


def test_a_try_does_not_pass_those_who_wait() -> None:
    """A reader that could join the reader holding must not starve the writer in line."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", X)
    assert isinstance(desk.enter("cat", READ, queue=False), c.Busy)


def test_a_resource_nobody_uses_has_no_row() -> None:
    """What is left after release is the session and the shard."""
    desk = Desk()
    desk.open("ann")
    rows = len(desk.rows)
    desk.enter("ann", X, lock("y"), permits(2), n=1, max_hold_ms=500)
    desk.enter("ann", lock("z"), n=2, max_hold_ms=500)
    desk.leave("ann", n=1)
    desk.leave("ann", n=2)
    assert len(desk.rows) == rows
    assert desk.do(c.Listing("lock")) == c.ListingReply((), False)


# ── readers, writers, updates ────────────────────────────────────────────────────────


def test_readers_hold_together_and_a_writer_alone() -> None:
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ)
    desk.enter("cat", X)
    assert desk.holders(READ) == {"ann", "bob"}
    desk.leave("ann")
    assert desk.holders(READ) == {"bob"}
    desk.leave("bob")
    assert desk.holders(READ) == {"cat"}


def test_a_writer_is_not_starved_by_later_readers() -> None:
    """A reader behind a waiting writer waits, though it could share with the holders."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", X)
    assert isinstance(desk.enter("cat", READ), c.Queued)
    desk.leave("ann")
    assert desk.holders(X) == {"bob"}
    desk.leave("bob")
    assert desk.holders(X) == {"cat"}


def test_readers_in_a_row_are_let_in_together() -> None:
    """One release moves as many as fit, in order, and no further."""
    desk = Desk()
    desk.enter("ann", X)
    for person, place in (("bob", READ), ("cat", READ), ("dan", X), ("eve", READ)):
        desk.enter(person, place)
    desk.leave("ann")
    assert desk.told(c.WAKE_GRANTED) == ["bob", "cat"]
    tokens = [wake.token for wake in desk.wakes if wake.what == c.WAKE_GRANTED]
    assert tokens[0] < tokens[1]
    assert desk.waiting(X) == ["dan", "eve"]


def test_there_is_one_update_beside_the_readers() -> None:
    desk = Desk()
    desk.enter("ann", READ)
    assert isinstance(desk.enter("bob", UPDATE), c.Granted)
    assert isinstance(desk.enter("cat", READ), c.Granted)
    assert isinstance(desk.enter("dan", UPDATE), c.Queued)


def test_strictly_in_order_even_where_one_could_share() -> None:
    """A reader behind a waiting update waits for its turn: the line is one line."""
    desk = Desk()
    desk.enter("ann", UPDATE)
    desk.enter("bob", UPDATE)
    assert isinstance(desk.enter("cat", READ), c.Queued)
    desk.leave("ann")
    assert desk.holders(X) == {"bob", "cat"}


# ── conversions ──────────────────────────────────────────────────────────────────────


def test_an_update_becomes_the_writer_when_the_readers_are_gone() -> None:
    """Meanwhile it keeps what it has, and no new reader is let in."""
    desk = Desk()
    held = desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    assert isinstance(desk.convert("ann", "exclusive"), c.Queued)
    assert isinstance(desk.enter("cat", READ), c.Queued)
    assert desk.holders(X) == {"ann", "bob"}
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["ann"]
    now = desk.look("ann")
    assert (now.mode, now.token > held.token) == ("exclusive", True)


def test_a_conversion_is_served_before_those_who_wait() -> None:
    """The writer in line was there first, and yet the update is ahead of it."""
    desk = Desk()
    desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    desk.enter("cat", X, head_start_ms=1_000)
    desk.convert("ann", "exclusive")
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["ann"]
    assert desk.waiting(X) == ["cat"]


def test_an_upgrade_from_shared_is_refused_while_another_updates() -> None:
    """Two readers who both want to write would wait for each other for ever."""
    desk = Desk()
    held = desk.enter("ann", READ)
    desk.enter("bob", UPDATE)
    for mode in ("update", "exclusive"):
        refused = desk.convert("ann", mode)
        assert (refused.why, refused.detail) == (c.WHY_DEADLOCK, "bob@host")
    assert (desk.look("ann").token, desk.look("ann").mode) == (held.token, "shared")


def test_an_upgrade_from_shared_is_refused_while_another_converts() -> None:
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ)
    assert isinstance(desk.convert("ann", "exclusive"), c.Queued)
    refused = desk.convert("bob", "exclusive")
    assert (refused.why, refused.detail) == (c.WHY_DEADLOCK, "ann@host")


def test_the_rival_is_named_also_when_it_holds_several_resources() -> None:
    """It updates this resource in the second of its places."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", lock("y"), UPDATE)
    assert desk.convert("ann", "exclusive").detail == "bob@host"


def test_a_holder_of_update_is_never_refused() -> None:
    """No reader can get into its way between its update and its request."""
    desk = Desk()
    desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    assert desk.convert("bob", "exclusive").why == c.WHY_DEADLOCK
    assert isinstance(desk.convert("ann", "exclusive"), c.Queued)


def test_a_conversion_given_up_keeps_the_granted_mode() -> None:
    """On timeout the client asks for the mode it has; those kept out come in."""
    desk = Desk()
    held = desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    desk.convert("ann", "exclusive")
    desk.enter("cat", READ)
    assert desk.convert("ann", "update") == c.Granted(held.token, 0, "update")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_conversion_lowered_while_it_waits_lets_the_readers_in() -> None:
    """From exclusive, still waiting, to update: nobody may be forgotten in line."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ)
    desk.convert("ann", "exclusive")
    desk.enter("cat", READ)
    assert desk.convert("ann", "update").mode == "update"
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_conversion_that_may_not_wait_changes_nothing() -> None:
    desk = Desk()
    held = desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    busy = desk.convert("ann", "exclusive", queue=False)
    assert [who.session for who in busy.ahead] == ["bob"]
    assert desk.look("ann") == held
    assert isinstance(desk.enter("cat", READ), c.Granted)


def test_a_downgrade_keeps_the_token_and_lets_others_in() -> None:
    desk = Desk()
    held = desk.enter("ann", X)
    desk.enter("bob", READ)
    assert desk.convert("ann", "shared").token == held.token
    assert desk.holders(X) == {"ann", "bob"}


def test_a_late_conversion_cannot_undo_a_newer_one() -> None:
    """Steps rise with each; a repeated one only looks."""
    desk = Desk()
    desk.enter("ann", X)
    desk.do(c.Convert("ann", 1, 2, "shared"))
    assert desk.do(c.Convert("ann", 1, 1, "update")).why == c.WHY_FINISHED
    assert desk.do(c.Convert("ann", 1, 2, "exclusive")).mode == "shared"


def test_only_a_lock_on_one_resource_can_be_converted() -> None:
    desk = Desk()
    desk.enter("ann", *tree("a", "shared"))
    desk.enter("ann", lock("y", "shared"), lock("z", "shared"))
    desk.enter("ann", READ)
    assert desk.convert("ann", "exclusive", n=1).why == c.WHY_INVALID
    assert desk.convert("ann", "exclusive", n=2).why == c.WHY_INVALID
    assert desk.convert("ann", "permit", n=3).why == c.WHY_INVALID
    assert isinstance(desk.convert("ann", "exclusive", n=4), c.Gone)


def test_a_converting_holder_that_leaves_lets_the_others_in() -> None:
    """Its wish goes with it."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ)
    desk.convert("ann", "exclusive")
    desk.enter("cat", READ)
    desk.leave("ann")
    assert desk.holders(X) == {"bob", "cat"}


# ── semaphores ───────────────────────────────────────────────────────────────────────


def test_permits_add_up_to_the_limit() -> None:
    desk = Desk()
    assert isinstance(desk.enter("ann", permits(3)), c.Granted)
    assert isinstance(desk.enter("bob", permits(1)), c.Granted)
    assert isinstance(desk.enter("cat", permits(1)), c.Queued)
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Small ones that would fit wait behind it, and it is served in its order."""
    desk = Desk()
    small = [f"s{i}" for i in range(4)]
    for person in small:
        desk.enter(person, permits(1))
    desk.enter("big", permits(4))
    for person in small:
        assert isinstance(desk.enter(f"late {person}", permits(1)), c.Queued)
        desk.leave(person)
    assert desk.holders(permits(4)) == {"big"}


def test_another_limit_is_refused_while_the_semaphore_is_in_use() -> None:
    desk = Desk()
    desk.enter("ann", permits(1, limit=4))
    refused = desk.enter("bob", permits(1, limit=5))
    assert refused == c.Refused(c.WHY_LIMIT_DIFFERS, "api", 5, 4)
    desk.leave("ann")
    assert isinstance(desk.enter("bob", permits(5, limit=5)), c.Granted)


def test_a_lowered_limit_affects_later_grants_only() -> None:
    desk = Desk()
    desk.enter("ann", permits(2))
    desk.enter("bob", permits(2))
    desk.enter("cat", permits(1))
    desk.do(c.Resize("semaphore", "api", 2))
    assert desk.holders(permits(1)) == {"ann", "bob"}
    desk.leave("ann")
    assert desk.waiting(permits(1)) == ["cat"]
    desk.leave("bob")
    assert desk.holders(permits(1)) == {"cat"}


def test_a_raised_limit_lets_those_in_who_fit_now() -> None:
    desk = Desk()
    desk.enter("ann", permits(4))
    desk.enter("bob", permits(1))
    desk.enter("cat", permits(2))
    desk.do(c.Resize("semaphore", "api", 6))
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    assert desk.enter("dan", permits(1, limit=4)).why == c.WHY_LIMIT_DIFFERS


def test_who_wants_more_than_a_lowered_limit_does_not_block_the_line() -> None:
    """It is told that it cannot be had; those behind it go on."""
    desk = Desk()
    desk.enter("ann", permits(4))
    desk.enter("bob", permits(3))
    desk.enter("cat", permits(1))
    desk.do(c.Resize("semaphore", "api", 2))
    assert "bob" in desk.told(c.WAKE_LOOK)
    assert "3 permits of 2" in desk.look("bob").reason
    desk.leave("ann")
    assert desk.holders(permits(1)) == {"cat"}


def test_only_a_semaphore_in_use_has_another_size() -> None:
    desk = Desk()
    desk.enter("ann", lock("api"))
    assert desk.do(c.Resize("lock", "api", 3)).why == c.WHY_INVALID
    assert desk.do(c.Resize("semaphore", "api", 0)).why == c.WHY_INVALID
    assert desk.do(c.Resize("semaphore", "api", 3)) == c.Done(found=False)


# ── several at once ──────────────────────────────────────────────────────────────────


def test_several_at_once_hold_nothing_before_everything() -> None:
    desk = Desk()
    desk.enter("ann", lock("b"))
    assert isinstance(desk.enter("bob", lock("a"), lock("b"), lock("c")), c.Queued)
    assert [desk.holders(lock(name)) for name in "abc"] == [set(), {"ann"}, set()]
    desk.leave("ann")
    assert [desk.holders(lock(name)) for name in "abc"] == [{"bob"}] * 3
    assert desk.told(c.WAKE_GRANTED) == ["bob"]


def test_several_at_once_have_one_token_above_all_before() -> None:
    desk = Desk()
    tokens = [desk.enter("ann", lock("a")).token, desk.enter("bob", lock("b")).token]
    desk.enter("cat", lock("a"), lock("b"))
    desk.leave("ann")
    desk.leave("bob")
    assert desk.look("cat").token > max(tokens)
    assert desk.look("cat").mode == ""


def test_what_is_reserved_keeps_out_later_claims() -> None:
    """Otherwise a claim of many names would never find them all free."""
    desk = Desk()
    desk.enter("ann", lock("b"))
    desk.enter("bob", lock("a"), lock("b"))
    assert isinstance(desk.enter("cat", lock("a")), c.Queued)
    desk.leave("ann")
    desk.leave("bob")
    assert desk.holders(lock("a")) == {"cat"}


@pytest.mark.parametrize("first", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("second", [("a", "b"), ("b", "a")])
def test_several_at_once_never_deadlock_whatever_the_order(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """The two cross while a third holds one of the names; they are served in order."""
    desk = Desk()
    desk.enter("ann", lock("b"))
    desk.enter("bob", *map(lock, first))
    desk.enter("cat", *map(lock, second))
    desk.leave("ann")
    assert desk.holders(lock("a")) == desk.holders(lock("b")) == {"bob"}
    desk.leave("bob")
    assert desk.holders(lock("a")) == desk.holders(lock("b")) == {"cat"}


def test_several_at_once_with_head_starts_do_not_deadlock() -> None:
    """A later claim with a head start takes the reservation back, in every line alike."""
    desk = Desk()
    desk.enter("ann", lock("b"))
    desk.enter("dan", lock("c"))
    desk.enter("bob", lock("a"), lock("b"))
    desk.enter("cat", lock("c"), lock("a"), lock("b"), head_start_ms=50)
    assert "bob" in desk.told(c.WAKE_LOOK)
    desk.leave("ann")
    assert desk.holders(lock("b")) == set()
    desk.leave("dan")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]
    desk.leave("cat")
    assert desk.holders(lock("a")) == desk.holders(lock("b")) == {"bob"}


def test_a_reservation_taken_back_is_behind_who_took_it() -> None:
    """A holder came in ahead; the reservation has become a place in line."""
    desk = Desk()
    desk.enter("ann", lock("b"))
    desk.enter("bob", lock("a"), lock("b"))
    assert isinstance(desk.enter("cat", lock("a"), head_start_ms=50), c.Granted)
    desk.leave("ann")
    assert desk.waiting(lock("b")) == ["bob"]
    desk.leave("cat")
    assert desk.holders(lock("a")) == {"bob"}


def test_a_reservation_given_up_lets_others_in() -> None:
    desk = Desk()
    desk.enter("ann", lock("b"))
    desk.enter("bob", lock("a"), lock("b"))
    desk.enter("cat", lock("a"))
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_lowered_limit_takes_reservations_back() -> None:
    """What is reserved is a later grant, not one that was made."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", permits(2))
    desk.enter("cat", permits(2), X)
    desk.do(c.Resize("semaphore", "api", 3))
    desk.leave("ann")
    assert desk.holders(X) == set()
    desk.leave("bob")
    assert desk.holders(X) == {"cat"}


def test_reservations_that_still_fit_stay_when_one_comes_in_ahead() -> None:
    """Bob only reads beside the update with a head start; cat, an update too, has to wait."""
    desk = Desk()
    desk.enter("ann", lock("y"))
    desk.enter("bob", READ, lock("y"))
    desk.enter("cat", UPDATE, lock("y", "shared"))
    assert isinstance(desk.enter("dan", UPDATE, head_start_ms=50), c.Granted)
    assert [who.session for who in desk.look("bob").ahead] == ["ann"]
    assert {who.session for who in desk.look("cat").ahead} == {"bob", "dan"}
    desk.leave("ann")
    assert desk.holders(X) == {"bob", "dan"}


def test_reserved_permits_count() -> None:
    """Others may take the rest of a semaphore, not what is reserved."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", permits(3), X)
    assert isinstance(desk.enter("cat", permits(1)), c.Granted)
    assert isinstance(desk.enter("dan", permits(1)), c.Queued)
    desk.leave("ann")
    assert desk.holders(permits(1)) == {"bob", "cat"}


def test_behind_a_place_in_line_no_reservation_stays() -> None:
    """One with a head start waits at the root; who stood behind it has to wait as well,
    as it would have to if it had come later: order does not depend on history."""
    desk = Desk()
    desk.enter("ann", *tree("a/b", "exclusive"))
    desk.enter("bob", *tree("a/b", "shared"))
    desk.enter("cat", *tree("a", "shared"), head_start_ms=50)
    desk.enter("dan", *tree("a/c", "shared"))
    assert desk.waiting(tree("a", "shared")[0]) == ["cat", "bob", "dan"]
    desk.leave("ann")
    assert desk.holders(tree("a", "shared")[0]) == {"cat", "bob", "dan"}


def test_a_conversion_takes_reservations_back() -> None:
    """A reader that becomes the update keeps out the update that was reserved."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", lock("y"))
    desk.enter("cat", UPDATE, lock("y"))
    assert desk.convert("ann", "update").mode == "update"
    desk.leave("bob")
    assert desk.holders(X) == {"ann"}
    desk.leave("ann")
    assert desk.holders(X) == {"cat"}


# ── trees ────────────────────────────────────────────────────────────────────────────


def test_tree_siblings_do_not_wait_for_each_other() -> None:
    """Not even behind one that waits for its own name and is reserved on the root."""
    desk = Desk()
    desk.enter("ann", *tree("a/b", "exclusive"))
    desk.enter("bob", *tree("a/b", "exclusive"))
    assert isinstance(desk.enter("cat", *tree("a/c", "exclusive")), c.Granted)
    assert isinstance(desk.enter("dan", *tree("a/d", "shared")), c.Granted)


def test_a_tree_writer_waits_for_readers_below_and_they_for_it() -> None:
    desk = Desk()
    desk.enter("ann", *tree("a/b/c", "shared"))
    assert isinstance(desk.enter("bob", *tree("a/b", "exclusive")), c.Queued)
    assert isinstance(desk.enter("cat", *tree("a/b/d", "shared")), c.Queued)
    desk.leave("ann")
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_siblings_wait_while_an_ancestors_writer_is_in_line() -> None:
    desk = Desk()
    desk.enter("ann", *tree("a/b", "shared"))
    desk.enter("bob", *tree("a", "exclusive"))
    assert isinstance(desk.enter("cat", *tree("a/c", "shared")), c.Queued)
    desk.leave("ann")
    desk.leave("bob")
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_reader_of_the_whole_keeps_out_writers_below() -> None:
    desk = Desk()
    desk.enter("ann", *tree("a", "shared"))
    assert isinstance(desk.enter("bob", *tree("a/b", "shared")), c.Granted)
    assert isinstance(desk.enter("cat", *tree("a/c", "exclusive")), c.Queued)


# ── closed resources ─────────────────────────────────────────────────────────────────


def test_a_closed_resource_grants_nothing_until_it_opens() -> None:
    """Neither to a newcomer nor to those in line; then the first step of anybody lets in."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    desk.leave("ann", close_ms=100)
    assert desk.holders(X) == set()
    assert desk.inspect(X).closed_ms == 100
    assert desk.look("bob").look_ms == 100
    desk.tick(99)
    assert desk.holders(X) == set()
    assert isinstance(desk.enter("cat", X, queue=False), c.Busy)
    desk.tick(1)
    assert desk.told(c.WAKE_GRANTED) == ["bob"]


def test_who_looks_when_it_opens_is_told_to_ask_at_once() -> None:
    """Reading lets nobody in; `look_ms` says that a keep-alive would."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    desk.leave("ann", close_ms=100)
    desk.wait(150)
    assert desk.look("bob").look_ms == 1
    renewed = desk.renew("bob", 1)
    assert isinstance(dict(renewed.looks)[1], c.Granted)


def test_a_closed_resource_leaves_no_row_when_it_has_opened() -> None:
    desk = Desk()
    desk.open("ann")
    rows = len(desk.rows)
    desk.enter("ann", X, n=1)
    desk.leave("ann", close_ms=100)
    assert len(desk.do(c.Listing("lock")).resources) == 1
    desk.tick(100)
    assert len(desk.rows) == rows


def test_a_resource_stays_closed_as_long_as_anybody_said() -> None:
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ)
    desk.leave("ann", close_ms=100)
    desk.leave("bob", close_ms=10)
    desk.tick(99)
    assert isinstance(desk.enter("cat", READ, queue=False), c.Busy)
    desk.tick(1)
    assert isinstance(desk.enter("dan", READ), c.Granted)


def test_a_conversion_to_exclusive_waits_while_it_is_closed() -> None:
    """It is a grant like any other: who was lost may still be at work."""
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", READ, lock_delay_ms=100)
    desk.do(c.RevokeSession("bob", "admin", "gone wild"))
    assert desk.convert("ann", "exclusive") == c.Queued((), 100)
    desk.tick(100)
    assert desk.told(c.WAKE_GRANTED) == ["ann"]


def test_closing_takes_reservations_back() -> None:
    desk = Desk()
    desk.enter("ann", READ)
    desk.enter("bob", lock("y"))
    desk.enter("cat", READ, lock("y"))
    desk.leave("ann", close_ms=100)
    desk.leave("bob")
    assert desk.holders(X) == set()
    desk.tick(100)
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_a_window_closes_the_resource_from_the_grant_on() -> None:
    """At most one run per window, however soon it is given back."""
    desk = Desk()
    once = c.Place("once", "nightly", "exclusive")
    assert isinstance(desk.enter("ann", once, window_ms=100), c.Granted)
    desk.leave("ann")
    assert isinstance(desk.enter("bob", once, queue=False, window_ms=100), c.Busy)
    desk.tick(100)
    assert isinstance(desk.enter("bob", once, queue=False, window_ms=100), c.Granted)


def test_a_window_keeps_out_also_who_could_share() -> None:
    """Nothing else is granted, not even in the same step."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", READ, window_ms=100)
    desk.enter("cat", READ)
    desk.leave("ann")
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    desk.tick(100)
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


# ── ends ─────────────────────────────────────────────────────────────────────────────


def test_max_hold_ends_one_lease_inside_its_session() -> None:
    """The next gets it; the session lives and learns why."""
    desk = Desk()
    desk.enter("ann", X, max_hold_ms=100)
    desk.enter("ann", lock("y"))
    desk.enter("bob", X)
    desk.tick(99)
    assert desk.holders(X) == {"ann"}
    desk.tick(1)
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    assert desk.told(c.WAKE_LOOK) == ["ann"]
    assert "max_hold" in desk.look("ann").reason
    assert isinstance(desk.look("ann", 2), c.Granted)


def test_max_hold_counts_from_the_grant() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X, max_hold_ms=100)
    desk.tick(500)
    desk.leave("ann")
    desk.tick(99)
    assert desk.holders(X) == {"bob"}


def test_max_hold_of_a_lease_given_back_ends_nothing() -> None:
    desk = Desk()
    desk.enter("ann", X, max_hold_ms=100)
    desk.leave("ann")
    desk.enter("ann", X)
    desk.tick(100)
    assert desk.holders(X) == {"ann"}


def test_lock_delay_follows_a_loss_and_not_a_release() -> None:
    """For resources that cannot check tokens: time for the lost holder to notice."""
    desk = Desk()
    desk.enter("ann", X, lock_delay_ms=100)
    desk.leave("ann")
    assert isinstance(desk.enter("bob", X, lock_delay_ms=100), c.Granted)
    desk.do(c.Expel("bob", "silent"))
    assert desk.inspect(X).closed_ms == 100
    assert isinstance(desk.enter("cat", X), c.Queued)
    desk.tick(100)
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


@pytest.mark.parametrize(
    "end",
    [
        c.Revoke("ann", 1, "admin", "why"),
        c.RevokeSession("ann", "admin", "why"),
        c.Expel("ann", "silent"),
    ],
)
def test_lock_delay_follows_every_kind_of_loss(end: c.Command) -> None:
    desk = Desk()
    desk.enter("ann", X, lock_delay_ms=100)
    desk.do(end)
    assert desk.inspect(X).closed_ms == 100


def test_a_waiter_that_is_lost_closes_nothing() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X, lock_delay_ms=100)
    desk.do(c.Expel("bob", "silent"))
    assert desk.inspect(X).closed_ms == 0
    assert desk.events()[-1][:2] == ("gave_up", "bob")


def test_a_closed_session_gives_everything_up_and_is_not_told() -> None:
    """It knows. Those behind it move."""
    desk = Desk()
    desk.enter("ann", X, lock_delay_ms=100)
    desk.enter("ann", lock("y"))
    desk.enter("bob", X, lock("y"))
    desk.do(c.Close("ann"))
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    assert desk.told(c.WAKE_ENDED) == []


def test_a_session_that_is_not_renewed_expires() -> None:
    """At its deadline, by the store's clock, with all its claims; and it is told."""
    desk = Desk()
    desk.open("ann", ttl_ms=100)
    desk.do(c.Enter("ann", 1, (X,)))
    desk.enter("bob", X)
    desk.tick(99)
    assert desk.holders(X) == {"ann"}
    desk.tick(1)
    assert desk.holders(X) == {"bob"}
    assert desk.told(c.WAKE_ENDED) == ["ann"]
    assert "expired" in desk.renew("ann").reason


def test_a_renewed_session_lives_for_another_ttl() -> None:
    desk = Desk()
    desk.open("ann", ttl_ms=100)
    desk.do(c.Enter("ann", 1, (X,)))
    for _ in range(5):
        desk.wait(90)
        assert isinstance(desk.renew("ann"), c.Renewed)
    desk.tick(99)
    assert desk.holders(X) == {"ann"}
    desk.tick(1)
    assert desk.holders(X) == set()


def test_an_overdue_session_is_over_for_whoever_looks() -> None:
    """Also before any step has noticed: a lease past its end is not said to be held."""
    desk = Desk()
    desk.open("ann", ttl_ms=100)
    desk.do(c.Enter("ann", 1, (X,)))
    desk.wait(100)
    assert isinstance(desk.look("ann"), c.Ended)
    assert isinstance(desk.do(c.Claims("ann")), c.Ended)
    assert desk.do(c.Sessions()).sessions[0].ended


def test_who_is_due_as_well_is_not_granted_first() -> None:
    """Two sessions end at one instant: the second never holds, so it delays nobody."""
    desk = Desk()
    desk.open("ann", "bob", ttl_ms=100)
    desk.do(c.Enter("ann", 1, (X,)))
    desk.do(c.Enter("bob", 1, (X,), lock_delay_ms=1_000))
    desk.enter("cat", X)
    desk.tick(100)
    assert desk.told(c.WAKE_GRANTED) == ["cat"]


def test_an_ended_session_never_comes_back() -> None:
    """Not by a late open, neither soon nor after the TTL it was opened with."""
    desk = Desk()
    desk.open("ann", ttl_ms=100)
    desk.do(c.Close("ann"))
    for _ in range(6):
        desk.wait(ENDED_KEPT_MS // 6 - 1)
        assert isinstance(desk.do(c.Open("ann", 100, "late")), c.Ended)
        late = c.Enter("ann", 1, (X,), open=c.Open("ann", 100, "late"))
        assert isinstance(desk.do(late), c.Ended)
    assert desk.holders(X) == set()


def test_only_open_creates_a_session() -> None:
    """Everything else on an unknown session answers that it ended."""
    desk = Desk()
    for command in (
        c.Enter("ann", 1, (X,)),
        c.Leave("ann", 1),
        c.Convert("ann", 1, 1, "shared"),
        c.Proclaim("ann", 1, "value"),
        c.Adopt("ann", 1, "task"),
        c.Renew("ann"),
        c.Watch("ann", True),
        c.Look("ann", 1),
        c.Claims("ann"),
    ):
        assert isinstance(desk.do(command), c.Ended)
    assert desk.do(c.Sessions()) == c.SessionsReply((), False)


def test_a_session_may_be_opened_with_its_first_claim() -> None:
    """One step; repeated, it changes nothing."""
    desk = Desk()
    ride = c.Enter("ann", 1, (X,), open=c.Open("ann", 100, "ann@host"))
    held = desk.do(ride)
    desk.wait(50)
    assert desk.do(ride) == held._replace(for_ms=50)
    desk.tick(50)
    assert desk.holders(X) == set()


def test_a_session_is_expelled_only_if_it_was_silent() -> None:
    """The counter is the proof; without one its process is known to be dead."""
    desk = Desk()
    desk.enter("ann", X)
    desk.renew("ann")
    assert desk.do(c.Expel("ann", "silent", renewals=0)) == c.Done(found=False)
    assert desk.holders(X) == {"ann"}
    assert desk.do(c.Expel("ann", "silent", renewals=1)) == c.Done(found=True)
    assert desk.told(c.WAKE_ENDED) == ["ann"]
    assert desk.renew("ann") == c.Ended("silent")


def test_a_revoked_holder_is_told_by_whom_and_why() -> None:
    """It learns by a wake, by looking, and by its keep-alive."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    assert desk.do(c.Revoke("ann", 1, "root@ops", "maintenance")) == c.Done()
    assert desk.told(c.WAKE_LOOK) == ["ann"]
    assert desk.told(c.WAKE_GRANTED) == ["bob"]
    gone = desk.look("ann")
    assert (gone.by, "maintenance" in gone.reason) == ("root@ops", True)
    assert desk.renew("ann", 1).looks == ((1, gone),)
    assert desk.do(c.Revoke("ann", 1, "root@ops", "again")) == c.Done(found=False)


def test_a_revoked_session_is_told_by_whom_and_why() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.do(c.RevokeSession("ann", "root@ops", "maintenance"))
    assert desk.told(c.WAKE_ENDED) == ["ann"]
    ended = desk.renew("ann")
    assert (ended.by, "maintenance" in ended.reason) == ("root@ops", True)


def test_more_sessions_may_end_at_once_than_one_step_takes_away() -> None:
    """A step has a bounded cost; the next ones do the rest."""
    desk = Desk()
    crowd = [f"s{i:03}" for i in range(2 * REAPED_PER_STEP)]
    desk.open(*crowd, ttl_ms=100)
    for person in crowd:
        desk.do(c.Enter(person, 1, (lock(person),)))
    desk.tick(100)
    assert len(desk.do(c.Listing("lock", limit=1000)).resources) == REAPED_PER_STEP
    assert "expired" in desk.renew(crowd[-1]).reason
    assert desk.do(c.Listing("lock")).resources == ()


def test_an_overdue_session_is_over_also_before_its_turn_to_be_taken_away() -> None:
    """More are due than one step takes; a keep-alive that is too late revives none."""
    desk = Desk()
    crowd = [f"s{i:03}" for i in range(2 * REAPED_PER_STEP)]
    desk.open(*crowd, ttl_ms=100)
    desk.do(c.Enter(crowd[-1], 1, (X,)))
    desk.enter("zoe", X)
    desk.wait(100)
    assert "expired" in desk.renew(crowd[-1]).reason
    assert desk.told(c.WAKE_GRANTED) == ["zoe"]


# ── claim numbers ────────────────────────────────────────────────────────────────────


def test_a_claim_that_arrives_after_its_leave_is_refused() -> None:
    """Reordered on the way: it would hold for ever, with nobody to release it."""
    desk = Desk()
    desk.open("ann")
    assert desk.leave("ann", n=1) == c.Done(found=False)
    assert desk.do(c.Enter("ann", 1, (X,))).why == c.WHY_FINISHED
    assert desk.holders(X) == set()


def test_a_repeated_claim_is_one_claim() -> None:
    desk = Desk()
    held = desk.enter("ann", X)
    assert desk.enter("ann", X, n=1) == held
    desk.leave("ann")
    assert desk.leave("ann") == c.Done(found=False)
    assert desk.enter("ann", X, n=1).why == c.WHY_FINISHED


def test_numbers_that_were_skipped_may_still_arrive() -> None:
    """Claims of one session overtake each other on the way; each counts once."""
    desk = Desk()
    desk.enter("ann", lock("c"), n=5)
    desk.enter("ann", lock("a"), n=2)
    desk.leave("ann", n=3)
    assert desk.enter("ann", lock("b"), n=3).why == c.WHY_FINISHED
    assert isinstance(desk.enter("ann", lock("b"), n=4), c.Granted)
    assert isinstance(desk.enter("ann", lock("d"), n=1), c.Granted)
    assert desk.enter("ann", lock("e"), n=0).why == c.WHY_FINISHED


def test_a_keep_alive_finishes_all_numbers_below_its_lowest() -> None:
    """So the store may forget older marks, and what is still on the way is refused."""
    desk = Desk()
    desk.enter("ann", X, n=9)
    desk.renew("ann", lowest=7)
    assert desk.enter("ann", lock("y"), n=6).why == c.WHY_FINISHED
    assert isinstance(desk.enter("ann", lock("y"), n=7), c.Granted)


@given(
    st.lists(
        st.tuples(st.sampled_from(["see", "forget"]), st.integers(min_value=1, max_value=12)),
        max_size=30,
    )
)
def test_numbers_are_remembered_as_in_a_set(steps: list[tuple[str, int]]) -> None:
    """The ranges of numbers not seen say the same as a plain set of those seen."""
    session = Session("ann", 1, "", "", "", "", 0, 0)
    seen: set[int] = set()
    for what, n in steps:
        if what == "see":
            see(session, n)
            seen.add(n)
        else:
            forget_below(session, n)
            seen |= set(range(1, n))
        assert [is_seen(session, i) for i in range(1, 15)] == [i in seen for i in range(1, 15)]


# ── keep-alive ───────────────────────────────────────────────────────────────────────


def test_a_keep_alive_proves_every_claim() -> None:
    """Count and checksum change with each claim, grant, conversion and loss."""
    desk = Desk()

    def proves(*claims: tuple[int, int]) -> bool:
        reply = desk.renew("ann", count=len(claims), checksum=checksum_of(claims))
        matches: bool = reply.matches
        return matches

    first = desk.enter("ann", X).token
    assert proves((1, first))
    desk.enter("bob", lock("y"))
    desk.enter("ann", lock("y"))
    assert proves((1, first), (2, 0))
    desk.leave("bob")
    assert not proves((1, first), (2, 0))
    second = desk.look("ann", 2).token
    assert proves((1, first), (2, second))
    third = desk.enter("ann", lock("z", "shared")).token
    newer = desk.convert("ann", "exclusive", n=3).token
    assert newer > third
    assert proves((1, first), (2, second), (3, newer))
    desk.do(c.Revoke("ann", 2, "root", "why"))
    assert not proves((1, first), (2, second), (3, newer))
    assert proves((1, first), (3, newer))


def test_a_keep_alive_says_how_its_claims_stand() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    looks = dict(desk.renew("bob", 1, 7).looks)
    assert isinstance(looks[1], c.Queued)
    assert isinstance(looks[7], c.Gone)


# ── tokens ───────────────────────────────────────────────────────────────────────────


def test_tokens_rise_when_the_wall_clock_is_set_back() -> None:
    desk = Desk()
    before = desk.enter("ann", X).token
    desk.wall_us -= 4_000_000
    assert desk.enter("ann", lock("y")).token > before


def test_tokens_rise_when_the_store_has_lost_everything() -> None:
    """The wall clock carries them over."""
    desk = Desk()
    before = desk.enter("ann", X).token
    empty = Desk()
    empty.now_ms, empty.wall_us = 0, desk.wall_us + 1
    assert empty.enter("ann", X).token > before


def test_a_block_of_tokens_belongs_to_its_claim_alone() -> None:
    desk = Desk()
    kept = desk.enter("ann", X, block=100).token
    assert desk.enter("bob", lock("y")).token >= kept + 100


# ── kept grants ──────────────────────────────────────────────────────────────────────


def test_who_keeps_a_grant_is_told_when_others_want_it() -> None:
    """By a wake at once, and in the answer to whoever looks."""
    desk = Desk()
    assert not desk.enter("ann", X, block=100).wanted
    desk.enter("bob", X)
    assert desk.told(c.WAKE_WANTED) == ["ann"]
    assert desk.look("ann").wanted
    desk.leave("bob")
    assert not desk.look("ann").wanted


def test_a_reader_that_keeps_its_grant_is_told_of_an_upgrade() -> None:
    """The upgrade waits for it, though nobody stands in line."""
    desk = Desk()
    desk.enter("ann", READ, block=100)
    desk.enter("bob", READ)
    desk.convert("bob", "exclusive")
    assert desk.told(c.WAKE_WANTED) == ["ann"]
    assert desk.look("ann").wanted


def test_a_keep_alive_makes_good_a_lost_wake_to_who_keeps() -> None:
    """It may name what it keeps beside what it waits for."""
    desk = Desk()
    desk.enter("ann", X, block=100)
    desk.enter("bob", X)
    assert dict(desk.renew("ann", 1).looks)[1].wanted


def test_who_keeps_is_told_once_and_not_by_everyone_who_comes() -> None:
    """Ten thousand cached readers must not be woken for each writer in line."""
    desk = Desk()
    desk.enter("ann", X, block=100)
    desk.enter("bob", X)
    desk.enter("cat", X)
    assert desk.told(c.WAKE_WANTED) == []
    desk.leave("ann")
    assert desk.told(c.WAKE_GRANTED) == ["bob"]


def test_who_is_granted_what_others_wait_for_is_told_with_the_grant() -> None:
    """At any of its places."""
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X, lock("y"), block=100)
    desk.enter("cat", lock("y"))
    desk.leave("ann")
    assert desk.told(c.WAKE_GRANTED) == desk.told(c.WAKE_WANTED) == ["bob"]


def test_who_only_holds_is_not_told() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.enter("bob", X)
    assert desk.wakes == []
    assert not desk.look("ann").wanted


# ── deadlocks ────────────────────────────────────────────────────────────────────────


def crossed() -> Desk:
    """Ann holds a and wants b, bob holds b and wants a."""
    desk = Desk()
    desk.enter("ann", lock("a"))
    desk.enter("bob", lock("b"))
    desk.enter("ann", lock("b"))
    desk.enter("bob", lock("a"))
    return desk


CYCLE = (
    c.Witness("ann", 1, True),
    c.Witness("ann", 2, False),
    c.Witness("bob", 1, True),
    c.Witness("bob", 2, False),
)


def test_the_victim_of_a_deadlock_gives_up_and_is_told() -> None:
    """Only its waiting claim goes; what it holds it still holds."""
    desk = crossed()
    assert desk.do(c.Break("bob", 2, CYCLE, detail="the cycle")) == c.Done()
    assert desk.look("bob", 2) == c.Gone(c.WHY_DEADLOCK, "the cycle")
    assert desk.told(c.WAKE_LOOK) == ["bob"]
    assert desk.holders(lock("b")) == {"bob"}
    desk.leave("bob", 1)
    assert desk.told(c.WAKE_GRANTED) == ["ann"]


def test_a_deadlock_that_is_over_has_no_victim() -> None:
    desk = crossed()
    desk.leave("ann", 1)
    assert desk.do(c.Break("bob", 2, CYCLE)) == c.Done(found=False)
    assert isinstance(desk.look("bob", 2), c.Granted)


@pytest.mark.parametrize("changed", range(len(CYCLE)))
def test_a_deadlock_that_is_not_as_it_was_seen_has_no_victim(changed: int) -> None:
    """Each claim of it has to stand as it did."""
    desk = crossed()
    wrong = CYCLE[changed]._replace(held=not CYCLE[changed].held)
    seen = (*CYCLE[:changed], wrong, *CYCLE[changed + 1 :])
    assert desk.do(c.Break("bob", 2, seen)) == c.Done(found=False)
    assert isinstance(desk.look("bob", 2), c.Queued)


@pytest.mark.parametrize("witnesses", [CYCLE, ()])
def test_a_victim_is_never_a_holder(witnesses: tuple[c.Witness, ...]) -> None:
    """Nothing but leave, expiry or revoke removes a holder."""
    desk = crossed()
    assert desk.do(c.Break("ann", 1, witnesses)) == c.Done(found=False)
    assert desk.holders(lock("a")) == {"ann"}


def test_a_victim_is_not_taken_twice() -> None:
    """What was revoked already stays so, and its session's account stays right."""
    desk = crossed()
    desk.do(c.Break("bob", 2, CYCLE))
    assert desk.do(c.Break("bob", 2, ())) == c.Done(found=False)
    assert [view.claims for view in desk.do(c.Sessions()).sessions] == [2, 1]


def test_a_conversion_may_be_the_victim_and_keeps_its_mode() -> None:
    desk = Desk()
    held = desk.enter("ann", UPDATE)
    desk.enter("bob", READ)
    desk.convert("ann", "exclusive")
    desk.enter("cat", READ)
    assert desk.do(c.Break("ann", 1, (), detail="the cycle")) == c.Done()
    assert desk.look("ann") == held
    assert desk.told(c.WAKE_LOOK) == ["ann"]
    assert desk.holders(X) == {"ann", "bob", "cat"}


def test_a_claim_may_pass_a_reservation_to_end_a_deadlock() -> None:
    """Bob reserves b and waits for a, whose holder wants b: she passes, then he has both."""
    desk = Desk()
    desk.enter("ann", lock("a"))
    desk.enter("bob", lock("a"), lock("b"))
    desk.enter("ann", lock("b"), block=100)
    assert desk.holders(lock("b")) == set()
    witnesses = (c.Witness("bob", 1, False), c.Witness("ann", 2, False))
    assert desk.do(c.Break("ann", 2, witnesses, ahead_of=("bob", 1))) == c.Done()
    assert desk.told(c.WAKE_GRANTED) == desk.told(c.WAKE_WANTED) == ["ann"]
    desk.leave("ann", 1)
    desk.leave("ann", 2)
    assert desk.told(c.WAKE_GRANTED) == ["bob"]


def test_who_passes_stands_directly_ahead() -> None:
    """Ahead of the one it passes, behind all who were ahead of that, moved or not."""
    desk = Desk()
    for person in ("ann", "bob", "cat", "dan", "eve"):
        desk.enter(person, X)
    desk.do(c.Break("eve", 1, (), ahead_of=("cat", 1)))
    assert desk.told(c.WAKE_LOOK).count("eve") == 1
    desk.do(c.Break("dan", 1, (), ahead_of=("cat", 1)))
    assert desk.waiting(X) == ["bob", "eve", "dan", "cat"]
    desk.do(c.Break("cat", 1, (), ahead_of=("eve", 1)))
    assert desk.waiting(X) == ["bob", "cat", "eve", "dan"]


def test_nobody_passes_backwards() -> None:
    """A claim that is ahead already stays where it is."""
    desk = Desk()
    for person in ("ann", "bob", "cat"):
        desk.enter(person, X)
    for other in (("cat", 1), ("ann", 1), ("bob", 1), ("nobody", 1)):
        assert desk.do(c.Break("bob", 1, (), ahead_of=other)) == c.Done(found=False)
    assert desk.waiting(X) == ["bob", "cat"]


@given(st.lists(st.integers(min_value=0, max_value=9), max_size=25))
def test_a_rank_just_before_another_is_behind_all_others(moves: list[int]) -> None:
    """However often claims pass each other, the order of ranks is that of a plain list."""
    line = [rank_of(5, arrival) for arrival in range(1, 11)]
    for arrival, at in enumerate(moves, start=11):
        moved = just_before(line[at], arrival)
        line.insert(at, moved)
        assert line == sorted(line)
        assert len(set(line)) == len(line)


# ── the log ──────────────────────────────────────────────────────────────────────────


def test_the_log_tells_the_whole_story() -> None:
    desk = Desk()
    desk.enter("ann", READ, value="v")
    desk.enter("bob", READ)
    desk.convert("ann", "exclusive")
    desk.leave("bob")
    desk.do(c.Proclaim("ann", 1, "w"))
    desk.enter("cat", X)
    desk.leave("cat")
    desk.do(c.Revoke("ann", 1, "root", "why"))
    desk.enter("dan", X)
    desk.do(c.Expel("dan", "silent"))
    assert [event[:2] for event in desk.events()] == [
        ("granted", "ann"),
        ("granted", "bob"),
        ("converting", "ann"),
        ("released", "bob"),
        ("converted", "ann"),
        ("proclaimed", "ann"),
        ("waiting", "cat"),
        ("gave_up", "cat"),
        ("revoked", "ann"),
        ("granted", "dan"),
        ("expired", "dan"),
    ]


def test_the_log_is_read_from_a_position_on() -> None:
    """Page by page, or only where it ends; each event once."""
    desk = Desk()
    for name in "abcd":
        desk.enter("ann", lock(name))
    page = desk.do(c.Events(1, limit=2))
    assert [event.name for event in page.events] == ["b", "c"]
    assert (page.end, page.oldest, page.more) == (4, 1, True)
    rest = desk.do(c.Events(page.events[-1].position))
    assert ([event.name for event in rest.events], rest.more) == (["d"], False)
    assert desk.do(c.Events(None)) == c.EventsReply((), 4, 1, False)
    assert Desk().do(c.Events(None)) == c.EventsReply((), 0, 1, False)


def test_the_log_is_bounded_and_says_where_it_begins() -> None:
    desk = Desk()
    desk.enter("ann", X)
    for i in range(LOG_KEPT + 200):
        desk.do(c.Proclaim("ann", 1, str(i)))
    reply = desk.do(c.Events(0, limit=1))
    assert reply.end == LOG_KEPT + 201
    assert reply.end - LOG_KEPT - 100 <= reply.oldest <= reply.end - LOG_KEPT + 1
    assert reply.events[0].position == reply.oldest


def test_watchers_are_woken_once_per_step_that_writes() -> None:
    """And not by what writes nothing, nor after they have stopped or ended."""
    desk = Desk()
    desk.open("ann", "bob", "eve")
    desk.do(c.Watch("ann", True))
    desk.do(c.Watch("ann", True))
    desk.do(c.Watch("bob", True))
    desk.enter("cat", X, lock("y"))
    assert desk.told(c.WAKE_EVENTS) == ["ann", "bob"]
    desk.renew("cat")
    assert desk.told(c.WAKE_EVENTS) == []
    desk.do(c.Watch("ann", False))
    desk.do(c.Close("bob"))
    desk.leave("cat")
    assert desk.told(c.WAKE_EVENTS) == []


# ── values, actors, views ────────────────────────────────────────────────────────────


def test_a_holder_may_change_its_value() -> None:
    desk = Desk()
    seat = c.Place("election", "boss", "exclusive")
    desk.enter("ann", seat, value="host-1")
    desk.enter("bob", seat, value="host-2")
    assert desk.do(c.Proclaim("ann", 1, "host-9")) == c.Done()
    assert desk.inspect(seat).holders[0].value == "host-9"
    assert isinstance(desk.do(c.Proclaim("bob", 1, "host-9")), c.Queued)
    assert isinstance(desk.do(c.Proclaim("ann", 2, "host-9")), c.Gone)


def test_members_of_a_party_never_wait() -> None:
    desk = Desk()
    party = c.Place("party", "workers", "shared")
    for person in ("ann", "bob", "cat"):
        assert isinstance(desk.enter(person, party, value=person), c.Granted)
    assert {claim.value for claim in desk.inspect(party).holders} == {"ann", "bob", "cat"}


def test_another_actor_may_answer_for_a_held_claim() -> None:
    desk = Desk()
    desk.enter("ann", X, actor="task 1")
    desk.enter("bob", X, actor="task 2")
    assert desk.do(c.Adopt("ann", 1, "task 3")) == c.Done()
    assert desk.inspect(X).holders[0].actor == "task 3"
    assert isinstance(desk.do(c.Adopt("bob", 1, "task 3")), c.Queued)


def test_resources_are_listed_by_name_and_prefix() -> None:
    """In order, page by page, and none with the prefix is left out."""
    desk = Desk()
    names = ["a", "a/b", "a/\U0010ffff", "a/\U0010ffff\U0010ffff", "b"]
    for name in reversed(names):
        desk.enter("ann", lock(name))
    desk.enter("ann", c.Place("election", "a/c", "exclusive"))
    page = desk.do(c.Listing("lock", limit=2))
    assert ([view.name for view in page.resources], page.more) == (names[:2], True)
    rest = desk.do(c.Listing("lock", after="a/b", limit=3))
    assert ([view.name for view in rest.resources], rest.more) == (names[2:], False)
    below = desk.do(c.Listing("lock", prefix="a/"))
    assert [view.name for view in below.resources] == names[1:4]


def test_sessions_are_listed_page_by_page() -> None:
    desk = Desk()
    desk.enter("ann", X)
    desk.open("bob", "cat")
    page = desk.do(c.Sessions(limit=2))
    assert [(view.session, view.claims) for view in page.sessions] == [("ann", 1), ("bob", 0)]
    assert page.more
    assert [view.session for view in desk.do(c.Sessions(after="bob")).sessions] == ["cat"]


def test_a_resource_is_shown_with_the_head_of_its_line() -> None:
    desk = Desk()
    for person in ("ann", "bob", "cat"):
        desk.enter(person, X)
    view = desk.do(c.Inspect("lock", "x", waiting_max=1))
    assert [claim.session for claim in view.waiting] == ["bob"]
    assert (view.holder_count, view.waiting_count) == (1, 2)


def test_reading_moves_nobody() -> None:
    """Not even when something is due."""
    desk = Desk()
    desk.open("ann", ttl_ms=100)
    desk.do(c.Enter("ann", 1, (X,)))
    desk.enter("bob", X)
    desk.wait(100)
    assert desk.holders(X) == {"ann"}
    assert isinstance(desk.look("bob"), c.Queued)
    desk.tick()
    assert desk.holders(X) == {"bob"}


# ── limits ───────────────────────────────────────────────────────────────────────────

SMALL = Limits(waiting_max=1, claims_max=2, places_max=2, text_max=8)


def test_a_full_line_refuses() -> None:
    desk = Desk(limits=SMALL)
    desk.enter("ann", X)
    desk.enter("bob", X)
    assert desk.enter("cat", X) == c.Refused(c.WHY_QUEUE_FULL, "x", 2, 1)
    assert isinstance(desk.enter("cat", X, queue=False), c.Busy)


def test_a_session_has_so_many_claims() -> None:
    desk = Desk(limits=SMALL)
    desk.enter("ann", lock("a"))
    desk.enter("ann", lock("b"))
    refused = desk.enter("ann", lock("c"))
    assert (refused.why, refused.value, refused.limit) == (c.WHY_CLAIMS_FULL, 3, 2)
    desk.leave("ann")
    assert isinstance(desk.enter("ann", lock("c"), n=3), c.Granted)


def test_texts_are_bounded_in_bytes() -> None:
    desk = Desk(limits=SMALL)
    for name in ("owner", "metadata"):
        texts = {"owner": "", "metadata": "", name: "ä" * 5}
        refused = desk.do(c.Open("eve", 100, **texts))
        assert refused == c.Refused(c.WHY_TOO_LARGE, name, 10, 8)
    desk.do(c.Open("ann", 100, "ann"))
    assert desk.do(c.Enter("ann", 1, (X,), value="ä" * 5)).why == c.WHY_TOO_LARGE
    desk.do(c.Enter("ann", 1, (X,)))
    assert desk.do(c.Proclaim("ann", 1, "ä" * 5)).why == c.WHY_TOO_LARGE
    assert desk.do(c.Sessions()).sessions[0].session == "ann"


@pytest.mark.parametrize(
    "places",
    [
        (),
        (X, lock("y"), lock("z")),
        (X, READ),
        (c.Place("lock", "x", "permit"),),
        (c.Place("tree", "x", "update"),),
        (c.Place("party", "x", "exclusive"),),
        (c.Place("unknown", "x", "exclusive"),),
        (permits(5, limit=4),),
        (permits(0, limit=4),),
        (permits(1, limit=0),),
    ],
)
def test_what_can_never_be_had_is_refused(places: tuple[c.Place, ...]) -> None:
    desk = Desk(limits=SMALL)
    assert desk.enter("ann", *places).why == c.WHY_INVALID
    assert isinstance(desk.enter("ann", X, n=1), c.Granted)


# ── cost ─────────────────────────────────────────────────────────────────────────────


def rows_touched(desk: Desk, command: c.Command) -> int:
    assert isinstance(desk.rows, CountingRows)
    before = desk.rows.touched
    desk.do(command)
    return desk.rows.touched - before


def costs_on_one_lock(waiters: int) -> list[int]:
    desk = Desk(CountingRows())
    desk.open("ann", "bob")
    desk.do(c.Enter("ann", 1, (X,)))
    for n in range(1, waiters + 1):
        desk.do(c.Enter("bob", n, (X,)))
    late = c.Enter("bob", waiters + 1, (X,))
    early = c.Enter("bob", waiters + 2, (X,), head_start_ms=500)
    middle = c.Leave("bob", waiters // 2)
    commands = (late, early, c.Leave("ann", 1), middle, c.Renew("bob"))
    return [rows_touched(desk, command) for command in commands]


def costs_on_one_root(others: int) -> list[int]:
    """Everybody has an intention on the root, half of them held and half reserved."""
    desk = Desk(CountingRows())
    desk.open("ann", "bob", "cat")
    for n in range(1, others + 1):
        desk.do(c.Enter("ann", n, tree(f"root/{n}", "shared")))
        desk.do(c.Enter("bob", n, tree(f"root/{n}", "exclusive")))
    enter = c.Enter("cat", 1, tree("root/new", "exclusive"))
    again = c.Enter("cat", 2, tree("root/new", "shared"))
    writer = c.Enter("cat", 3, tree("root", "exclusive"))
    commands = (enter, again, c.Leave("cat", 1), writer, c.Leave("ann", 1), c.Renew("cat"))
    return [rows_touched(desk, command) for command in commands]


def costs_of_permits(others: int) -> list[int]:
    desk = Desk(CountingRows())
    desk.open("ann", "bob")
    for n in range(1, others + 1):
        desk.do(c.Enter("ann", n, (permits(1, limit=others),)))
        desk.do(c.Enter("bob", n, (permits(1, limit=others),)))
    commands = (c.Leave("ann", 3), c.Enter("ann", others + 1, (permits(2, limit=others),)))
    return [rows_touched(desk, command) for command in commands]


@pytest.mark.parametrize("costs", [costs_on_one_lock, costs_on_one_root, costs_of_permits])
def test_a_step_costs_the_same_however_long_the_line(costs: object) -> None:
    """As many rows are touched beside 40 others as beside 1,000."""
    assert callable(costs)
    few, many = costs(40), costs(1_000)
    assert few == many
    assert max(few) <= 100


def test_memory_rows_can_be_copied() -> None:
    """A copy does not follow what happens later."""
    desk = Desk()
    desk.enter("ann", X)
    kept = desk.rows.copy()
    desk.leave("ann")
    assert Desk(kept).holders(X) == {"ann"}
    assert isinstance(kept, MemoryRows)
    assert len(kept) > len(desk.rows)
