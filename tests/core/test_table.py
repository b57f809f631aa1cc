"""The rules of the lock table, each shown with a few sessions on one driver."""

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
from tests.core.table_driver import CountingRows, TableDriver, lock, permits, tree

X = lock("x")
READ = lock("x", "shared")
UPDATE = lock("x", "update")


# ── the line ─────────────────────────────────────────────────────────────────────────


def test_claims_are_served_in_order_of_arrival() -> None:
    """Each release hands over to the longest waiter, with one wake and a higher token."""
    driver = TableDriver()
    people = ["ann", "bob", "cat", "dan"]
    replies = [driver.enter(person, X) for person in people]
    assert [type(reply) for reply in replies] == [c.Granted, c.Queued, c.Queued, c.Queued]
    tokens = [replies[0].token]
    for person, heir in pairwise(people):
        driver.leave(person)
        assert [(wake.what, wake.session) for wake in driver.wakes] == [(c.WAKE_GRANTED, heir)]
        tokens.append(driver.wakes[0].token)
        assert driver.look(heir).token == tokens[-1]
    assert tokens == sorted(set(tokens))


def test_a_waiter_is_told_who_is_directly_ahead() -> None:
    """The first waiter sees the holder; every other waiter sees the claim before it."""
    driver = TableDriver()
    driver.enter("ann", X)
    first = driver.enter("bob", X)
    second = driver.enter("cat", X)
    assert [(who.session, who.held) for who in first.ahead] == [("ann", True)]
    assert [(who.session, who.held) for who in second.ahead] == [("bob", False)]
    assert first.ahead[0].owner == "ann@host"


def test_a_waiter_looks_again_when_the_one_ahead_is_over() -> None:
    """`look_ms` is what is left of the TTL or of max_hold, whichever ends first."""
    driver = TableDriver()
    driver.enter("ann", X)
    assert driver.enter("bob", X).look_ms == 60_000
    driver.wait(1_000)
    driver.enter("cat", lock("y"), max_hold_ms=500)
    assert driver.look("bob").look_ms == 59_000
    assert driver.enter("dan", lock("y")).look_ms == 500


def test_whoever_loses_the_one_ahead_is_told_to_look() -> None:
    """When a waiter gives up, the next one is woken, because it must watch another claim."""
    driver = TableDriver()
    for person in ("ann", "bob", "cat"):
        driver.enter(person, X)
    driver.leave("bob")
    assert driver.told(c.WAKE_LOOK) == ["cat"]
    assert [who.session for who in driver.look("cat").ahead] == ["ann"]


def test_a_head_start_passes_those_who_wait() -> None:
    """Priority is a head start in the queue."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    driver.wait(100)
    driver.enter("cat", X, head_start_ms=500)
    assert driver.told(c.WAKE_LOOK) == ["bob"]
    assert driver.waiting(X) == ["cat", "bob"]


def test_a_head_start_is_used_up_by_time() -> None:
    """A claim that has waited longer than the head start stays ahead, so none starves."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    driver.wait(501)
    driver.enter("cat", X, head_start_ms=500)
    assert driver.waiting(X) == ["bob", "cat"]


def test_a_head_start_never_displaces_a_holder() -> None:
    """No later claim removes the holder."""
    driver = TableDriver()
    held = driver.enter("ann", X)
    assert isinstance(driver.enter("bob", X, head_start_ms=1_000_000), c.Queued)
    assert driver.look("ann").token == held.token


def test_a_waiter_is_told_of_a_holder_that_came_in_ahead() -> None:
    """A claim with a head start may join the holders; the first waiter must watch it too."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", X)
    assert isinstance(driver.enter("cat", READ, head_start_ms=9), c.Granted)
    assert driver.told(c.WAKE_LOOK) == ["bob"]
    assert {who.session for who in driver.look("bob").ahead} == {"ann", "cat"}


def test_a_try_that_fails_leaves_nothing_behind() -> None:
    """With `queue=False` a claim is granted at once or not recorded."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.open("bob")
    rows = len(driver.rows)
    busy = driver.do(c.Enter("bob", 1, (X, lock("y")), queue=False))
    assert [who.session for who in busy.ahead] == ["ann"]
    assert len(driver.rows) == rows
    assert driver.do(c.Claims("bob")) == c.ClaimsReply(())


def test_a_try_does_not_pass_those_who_wait() -> None:
    """A reader that is compatible with the holders must not starve the waiting writer."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", X)
    assert isinstance(driver.enter("cat", READ, queue=False), c.Busy)


def test_a_resource_nobody_uses_has_no_row() -> None:
    """After the release only the rows of the session and the shard are left."""
    driver = TableDriver()
    driver.open("ann")
    rows = len(driver.rows)
    driver.enter("ann", X, lock("y"), permits(2), n=1, max_hold_ms=500)
    driver.enter("ann", lock("z"), n=2, max_hold_ms=500)
    driver.leave("ann", n=1)
    driver.leave("ann", n=2)
    assert len(driver.rows) == rows
    assert driver.do(c.Listing("lock")) == c.ListingReply((), False)


# ── readers, writers, updates ────────────────────────────────────────────────────────


def test_readers_hold_together_and_a_writer_alone() -> None:
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ)
    driver.enter("cat", X)
    assert driver.holders(READ) == {"ann", "bob"}
    driver.leave("ann")
    assert driver.holders(READ) == {"bob"}
    driver.leave("bob")
    assert driver.holders(READ) == {"cat"}


def test_a_writer_is_not_starved_by_later_readers() -> None:
    """A reader behind a waiting writer waits, although it is compatible with the holders."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", X)
    assert isinstance(driver.enter("cat", READ), c.Queued)
    driver.leave("ann")
    assert driver.holders(X) == {"bob"}
    driver.leave("bob")
    assert driver.holders(X) == {"cat"}


def test_readers_in_a_row_are_let_in_together() -> None:
    """One release grants as many claims as fit, in order, and stops at the first that does not."""
    driver = TableDriver()
    driver.enter("ann", X)
    for person, place in (("bob", READ), ("cat", READ), ("dan", X), ("eve", READ)):
        driver.enter(person, place)
    driver.leave("ann")
    assert driver.told(c.WAKE_GRANTED) == ["bob", "cat"]
    tokens = [wake.token for wake in driver.wakes if wake.what == c.WAKE_GRANTED]
    assert tokens[0] < tokens[1]
    assert driver.waiting(X) == ["dan", "eve"]


def test_there_is_one_update_beside_the_readers() -> None:
    driver = TableDriver()
    driver.enter("ann", READ)
    assert isinstance(driver.enter("bob", UPDATE), c.Granted)
    assert isinstance(driver.enter("cat", READ), c.Granted)
    assert isinstance(driver.enter("dan", UPDATE), c.Queued)


def test_strictly_in_order_even_where_one_could_share() -> None:
    """A reader behind a waiting update waits for its turn, because there is one queue."""
    driver = TableDriver()
    driver.enter("ann", UPDATE)
    driver.enter("bob", UPDATE)
    assert isinstance(driver.enter("cat", READ), c.Queued)
    driver.leave("ann")
    assert driver.holders(X) == {"bob", "cat"}


# ── conversions ──────────────────────────────────────────────────────────────────────


def test_an_update_becomes_the_writer_when_the_readers_are_gone() -> None:
    """While it waits it keeps its mode, and no new reader is admitted."""
    driver = TableDriver()
    held = driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    assert isinstance(driver.convert("ann", "exclusive"), c.Queued)
    assert isinstance(driver.enter("cat", READ), c.Queued)
    assert driver.holders(X) == {"ann", "bob"}
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["ann"]
    now = driver.look("ann")
    assert (now.mode, now.token > held.token) == ("exclusive", True)


def test_a_conversion_is_served_before_those_who_wait() -> None:
    """The conversion is served first, although the waiting writer came earlier."""
    driver = TableDriver()
    driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    driver.enter("cat", X, head_start_ms=1_000)
    driver.convert("ann", "exclusive")
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["ann"]
    assert driver.waiting(X) == ["cat"]


def test_an_upgrade_from_shared_is_refused_while_another_updates() -> None:
    """Two readers that both want to write would wait for each other for ever."""
    driver = TableDriver()
    held = driver.enter("ann", READ)
    driver.enter("bob", UPDATE)
    for mode in ("update", "exclusive"):
        refused = driver.convert("ann", mode)
        assert (refused.why, refused.detail) == (c.WHY_DEADLOCK, "bob@host")
    assert (driver.look("ann").token, driver.look("ann").mode) == (held.token, "shared")


def test_an_upgrade_from_shared_is_refused_while_another_converts() -> None:
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ)
    assert isinstance(driver.convert("ann", "exclusive"), c.Queued)
    refused = driver.convert("bob", "exclusive")
    assert (refused.why, refused.detail) == (c.WHY_DEADLOCK, "ann@host")


def test_the_rival_is_named_also_when_it_holds_several_resources() -> None:
    """The rival holds `update` on this resource through the second of its places."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", lock("y"), UPDATE)
    assert driver.convert("ann", "exclusive").detail == "bob@host"


def test_a_holder_of_update_is_never_refused() -> None:
    """No reader is admitted between its grant of `update` and its upgrade."""
    driver = TableDriver()
    driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    assert driver.convert("bob", "exclusive").why == c.WHY_DEADLOCK
    assert isinstance(driver.convert("ann", "exclusive"), c.Queued)


def test_a_conversion_given_up_keeps_the_granted_mode() -> None:
    """On timeout the client converts to the mode it has, and the blocked readers are admitted."""
    driver = TableDriver()
    held = driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    driver.convert("ann", "exclusive")
    driver.enter("cat", READ)
    assert driver.convert("ann", "update") == c.Granted(held.token, 0, "update")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_conversion_lowered_while_it_waits_lets_the_readers_in() -> None:
    """A pending conversion to exclusive is lowered to update: no waiting reader is forgotten."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ)
    driver.convert("ann", "exclusive")
    driver.enter("cat", READ)
    assert driver.convert("ann", "update").mode == "update"
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_conversion_that_may_not_wait_changes_nothing() -> None:
    driver = TableDriver()
    held = driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    busy = driver.convert("ann", "exclusive", queue=False)
    assert [who.session for who in busy.ahead] == ["bob"]
    assert driver.look("ann") == held
    assert isinstance(driver.enter("cat", READ), c.Granted)


def test_a_downgrade_keeps_the_token_and_lets_others_in() -> None:
    driver = TableDriver()
    held = driver.enter("ann", X)
    driver.enter("bob", READ)
    assert driver.convert("ann", "shared").token == held.token
    assert driver.holders(X) == {"ann", "bob"}


def test_a_late_conversion_cannot_undo_a_newer_one() -> None:
    """Each conversion has a higher step number; a repeated one only reads."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.do(c.Convert("ann", 1, 2, "shared"))
    assert driver.do(c.Convert("ann", 1, 1, "update")).why == c.WHY_FINISHED
    assert driver.do(c.Convert("ann", 1, 2, "exclusive")).mode == "shared"


def test_only_a_lock_on_one_resource_can_be_converted() -> None:
    driver = TableDriver()
    driver.enter("ann", *tree("a", "shared"))
    driver.enter("ann", lock("y", "shared"), lock("z", "shared"))
    driver.enter("ann", READ)
    assert driver.convert("ann", "exclusive", n=1).why == c.WHY_INVALID
    assert driver.convert("ann", "exclusive", n=2).why == c.WHY_INVALID
    assert driver.convert("ann", "permit", n=3).why == c.WHY_INVALID
    assert isinstance(driver.convert("ann", "exclusive", n=4), c.Gone)


def test_a_converting_holder_that_leaves_lets_the_others_in() -> None:
    """Its pending conversion ends with it."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ)
    driver.convert("ann", "exclusive")
    driver.enter("cat", READ)
    driver.leave("ann")
    assert driver.holders(X) == {"bob", "cat"}


# ── semaphores ───────────────────────────────────────────────────────────────────────


def test_permits_add_up_to_the_limit() -> None:
    driver = TableDriver()
    assert isinstance(driver.enter("ann", permits(3)), c.Granted)
    assert isinstance(driver.enter("bob", permits(1)), c.Granted)
    assert isinstance(driver.enter("cat", permits(1)), c.Queued)
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Smaller requests that would fit wait behind it, and it is served in its turn."""
    driver = TableDriver()
    small = [f"s{i}" for i in range(4)]
    for person in small:
        driver.enter(person, permits(1))
    driver.enter("big", permits(4))
    for person in small:
        assert isinstance(driver.enter(f"late {person}", permits(1)), c.Queued)
        driver.leave(person)
    assert driver.holders(permits(4)) == {"big"}


def test_another_limit_is_refused_while_the_semaphore_is_in_use() -> None:
    driver = TableDriver()
    driver.enter("ann", permits(1, limit=4))
    refused = driver.enter("bob", permits(1, limit=5))
    assert refused == c.Refused(c.WHY_LIMIT_DIFFERS, "api", 5, 4)
    driver.leave("ann")
    assert isinstance(driver.enter("bob", permits(5, limit=5)), c.Granted)


def test_a_lowered_limit_affects_later_grants_only() -> None:
    driver = TableDriver()
    driver.enter("ann", permits(2))
    driver.enter("bob", permits(2))
    driver.enter("cat", permits(1))
    driver.do(c.Resize("semaphore", "api", 2))
    assert driver.holders(permits(1)) == {"ann", "bob"}
    driver.leave("ann")
    assert driver.waiting(permits(1)) == ["cat"]
    driver.leave("bob")
    assert driver.holders(permits(1)) == {"cat"}


def test_a_raised_limit_lets_those_in_who_fit_now() -> None:
    driver = TableDriver()
    driver.enter("ann", permits(4))
    driver.enter("bob", permits(1))
    driver.enter("cat", permits(2))
    driver.do(c.Resize("semaphore", "api", 6))
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    assert driver.enter("dan", permits(1, limit=4)).why == c.WHY_LIMIT_DIFFERS


def test_who_wants_more_than_a_lowered_limit_does_not_block_the_line() -> None:
    """Its client is told that the permits can never be had, and the claims behind it continue."""
    driver = TableDriver()
    driver.enter("ann", permits(4))
    driver.enter("bob", permits(3))
    driver.enter("cat", permits(1))
    driver.do(c.Resize("semaphore", "api", 2))
    assert "bob" in driver.told(c.WAKE_LOOK)
    assert "cannot grant 3 permits" in driver.look("bob").reason
    driver.leave("ann")
    assert driver.holders(permits(1)) == {"cat"}


def test_only_a_semaphore_in_use_has_another_size() -> None:
    driver = TableDriver()
    driver.enter("ann", lock("api"))
    assert driver.do(c.Resize("lock", "api", 3)).why == c.WHY_INVALID
    assert driver.do(c.Resize("semaphore", "api", 0)).why == c.WHY_INVALID
    assert driver.do(c.Resize("semaphore", "api", 3)) == c.Done(found=False)


def test_a_conversion_does_not_wait_for_reservations() -> None:
    """Not even for those of lower rank: conversions are served before the queue."""
    driver = TableDriver()
    driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    driver.enter("cat", lock("y"))
    assert isinstance(driver.enter("dan", READ, lock("y"), head_start_ms=500), c.Queued)
    for queue in (False, True):
        reply = driver.convert("ann", "exclusive", queue=queue)
        assert [blocker.session for blocker in reply.ahead] == ["bob"]


# ── several at once ──────────────────────────────────────────────────────────────────


def test_several_at_once_hold_nothing_before_everything() -> None:
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    assert isinstance(driver.enter("bob", lock("a"), lock("b"), lock("c")), c.Queued)
    assert [driver.holders(lock(name)) for name in "abc"] == [set(), {"ann"}, set()]
    driver.leave("ann")
    assert [driver.holders(lock(name)) for name in "abc"] == [{"bob"}] * 3
    assert driver.told(c.WAKE_GRANTED) == ["bob"]


def test_several_at_once_have_one_token_above_all_before() -> None:
    driver = TableDriver()
    tokens = [driver.enter("ann", lock("a")).token, driver.enter("bob", lock("b")).token]
    driver.enter("cat", lock("a"), lock("b"))
    driver.leave("ann")
    driver.leave("bob")
    assert driver.look("cat").token > max(tokens)
    assert driver.look("cat").mode == ""


def test_what_is_reserved_keeps_out_later_claims() -> None:
    """Otherwise a claim with many places would never find all of them free."""
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    driver.enter("bob", lock("a"), lock("b"))
    assert isinstance(driver.enter("cat", lock("a")), c.Queued)
    driver.leave("ann")
    driver.leave("bob")
    assert driver.holders(lock("a")) == {"cat"}


@pytest.mark.parametrize("first", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("second", [("a", "b"), ("b", "a")])
def test_several_at_once_never_deadlock_whatever_the_order(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    """Two claims cross while a third holds one of the names; they are served in order."""
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    driver.enter("bob", *map(lock, first))
    driver.enter("cat", *map(lock, second))
    driver.leave("ann")
    assert driver.holders(lock("a")) == driver.holders(lock("b")) == {"bob"}
    driver.leave("bob")
    assert driver.holders(lock("a")) == driver.holders(lock("b")) == {"cat"}


def test_several_at_once_with_head_starts_do_not_deadlock() -> None:
    """A later claim with a head start revokes the reservation, in every queue alike."""
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    driver.enter("dan", lock("c"))
    driver.enter("bob", lock("a"), lock("b"))
    driver.enter("cat", lock("c"), lock("a"), lock("b"), head_start_ms=50)
    assert "bob" in driver.told(c.WAKE_LOOK)
    driver.leave("ann")
    assert driver.holders(lock("b")) == set()
    driver.leave("dan")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]
    driver.leave("cat")
    assert driver.holders(lock("a")) == driver.holders(lock("b")) == {"bob"}


def test_a_reservation_taken_back_is_behind_who_took_it() -> None:
    """A claim of lower rank became a holder; the reservation is a place in the queue again."""
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    driver.enter("bob", lock("a"), lock("b"))
    assert isinstance(driver.enter("cat", lock("a"), head_start_ms=50), c.Granted)
    driver.leave("ann")
    assert driver.waiting(lock("b")) == ["bob"]
    driver.leave("cat")
    assert driver.holders(lock("a")) == {"bob"}


def test_a_reservation_given_up_lets_others_in() -> None:
    driver = TableDriver()
    driver.enter("ann", lock("b"))
    driver.enter("bob", lock("a"), lock("b"))
    driver.enter("cat", lock("a"))
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_lowered_limit_takes_reservations_back() -> None:
    """A reservation is a future grant, so a lowered limit applies to it."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", permits(2))
    driver.enter("cat", permits(2), X)
    driver.do(c.Resize("semaphore", "api", 3))
    driver.leave("ann")
    assert driver.holders(X) == set()
    driver.leave("bob")
    assert driver.holders(X) == {"cat"}


def test_reservations_that_still_fit_stay_when_one_comes_in_ahead() -> None:
    """Bob reads beside the update that has a head start; cat, also an update, must wait."""
    driver = TableDriver()
    driver.enter("ann", lock("y"))
    driver.enter("bob", READ, lock("y"))
    driver.enter("cat", UPDATE, lock("y", "shared"))
    assert isinstance(driver.enter("dan", UPDATE, head_start_ms=50), c.Granted)
    assert [who.session for who in driver.look("bob").ahead] == ["ann"]
    assert {who.session for who in driver.look("cat").ahead} == {"bob", "dan"}
    driver.leave("ann")
    assert driver.holders(X) == {"bob", "dan"}


def test_reserved_permits_count() -> None:
    """Others may take the remaining permits of a semaphore, but not the reserved ones."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", permits(3), X)
    assert isinstance(driver.enter("cat", permits(1)), c.Granted)
    assert isinstance(driver.enter("dan", permits(1)), c.Queued)
    driver.leave("ann")
    assert driver.holders(permits(1)) == {"bob", "cat"}


def test_behind_a_place_in_line_no_reservation_stays() -> None:
    """A claim with a head start waits at the root.

    Those behind it lose their reservations and wait, as they would if they had come later: the
    order does not depend on history.
    """
    driver = TableDriver()
    driver.enter("ann", *tree("a/b", "exclusive"))
    driver.enter("bob", *tree("a/b", "shared"))
    driver.enter("cat", *tree("a", "shared"), head_start_ms=50)
    driver.enter("dan", *tree("a/c", "shared"))
    assert driver.waiting(tree("a", "shared")[0]) == ["cat", "bob", "dan"]
    driver.leave("ann")
    assert driver.holders(tree("a", "shared")[0]) == {"cat", "bob", "dan"}


def test_a_conversion_takes_reservations_back() -> None:
    """A reader that is converted to update revokes the reservation of another update."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", lock("y"))
    driver.enter("cat", UPDATE, lock("y"))
    assert driver.convert("ann", "update").mode == "update"
    driver.leave("bob")
    assert driver.holders(X) == {"ann"}
    driver.leave("ann")
    assert driver.holders(X) == {"cat"}


# ── trees ────────────────────────────────────────────────────────────────────────────


def test_tree_siblings_do_not_wait_for_each_other() -> None:
    """Not even behind a claim that waits for its own node and has the root reserved."""
    driver = TableDriver()
    driver.enter("ann", *tree("a/b", "exclusive"))
    driver.enter("bob", *tree("a/b", "exclusive"))
    assert isinstance(driver.enter("cat", *tree("a/c", "exclusive")), c.Granted)
    assert isinstance(driver.enter("dan", *tree("a/d", "shared")), c.Granted)


def test_a_tree_writer_waits_for_readers_below_and_they_for_it() -> None:
    driver = TableDriver()
    driver.enter("ann", *tree("a/b/c", "shared"))
    assert isinstance(driver.enter("bob", *tree("a/b", "exclusive")), c.Queued)
    assert isinstance(driver.enter("cat", *tree("a/b/d", "shared")), c.Queued)
    driver.leave("ann")
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_siblings_wait_while_an_ancestors_writer_is_in_line() -> None:
    driver = TableDriver()
    driver.enter("ann", *tree("a/b", "shared"))
    driver.enter("bob", *tree("a", "exclusive"))
    assert isinstance(driver.enter("cat", *tree("a/c", "shared")), c.Queued)
    driver.leave("ann")
    driver.leave("bob")
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_reader_of_the_whole_keeps_out_writers_below() -> None:
    driver = TableDriver()
    driver.enter("ann", *tree("a", "shared"))
    assert isinstance(driver.enter("bob", *tree("a/b", "shared")), c.Granted)
    assert isinstance(driver.enter("cat", *tree("a/c", "exclusive")), c.Queued)


# ── closed resources ─────────────────────────────────────────────────────────────────


def test_a_closed_resource_grants_nothing_until_it_opens() -> None:
    """Neither a new nor a waiting claim is granted; after that, the first step grants."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    driver.leave("ann", close_ms=100)
    assert driver.holders(X) == set()
    assert driver.inspect(X).closed_ms == 100
    assert driver.look("bob").look_ms == 100
    driver.tick(99)
    assert driver.holders(X) == set()
    assert isinstance(driver.enter("cat", X, queue=False), c.Busy)
    driver.tick(1)
    assert driver.told(c.WAKE_GRANTED) == ["bob"]


def test_who_looks_when_it_opens_is_told_to_ask_at_once() -> None:
    """Reading grants nothing; `look_ms` says that a keep-alive would."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    driver.leave("ann", close_ms=100)
    driver.wait(150)
    assert driver.look("bob").look_ms == 1
    renewed = driver.renew("bob", 1)
    assert isinstance(dict(renewed.looks)[1], c.Granted)


def test_a_closed_resource_leaves_no_row_when_it_has_opened() -> None:
    driver = TableDriver()
    driver.open("ann")
    rows = len(driver.rows)
    driver.enter("ann", X, n=1)
    driver.leave("ann", close_ms=100)
    assert len(driver.do(c.Listing("lock")).resources) == 1
    driver.tick(100)
    assert len(driver.rows) == rows


def test_a_resource_stays_closed_as_long_as_anybody_said() -> None:
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ)
    driver.leave("ann", close_ms=100)
    driver.leave("bob", close_ms=10)
    driver.tick(99)
    assert isinstance(driver.enter("cat", READ, queue=False), c.Busy)
    driver.tick(1)
    assert isinstance(driver.enter("dan", READ), c.Granted)


def test_a_conversion_to_exclusive_waits_while_it_is_closed() -> None:
    """A conversion is a grant like any other, and the lost holder may still be working."""
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", READ, lock_delay_ms=100)
    driver.do(c.RevokeSession("bob", "admin", "gone wild"))
    assert driver.convert("ann", "exclusive") == c.Queued((), 100)
    driver.tick(100)
    assert driver.told(c.WAKE_GRANTED) == ["ann"]


def test_closing_takes_reservations_back() -> None:
    driver = TableDriver()
    driver.enter("ann", READ)
    driver.enter("bob", lock("y"))
    driver.enter("cat", READ, lock("y"))
    driver.leave("ann", close_ms=100)
    driver.leave("bob")
    assert driver.holders(X) == set()
    driver.tick(100)
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_a_window_closes_the_resource_from_the_grant_on() -> None:
    """At most one run per window, however early the lease is released."""
    driver = TableDriver()
    once = c.Place("once", "nightly", "exclusive")
    assert isinstance(driver.enter("ann", once, window_ms=100), c.Granted)
    driver.leave("ann")
    assert isinstance(driver.enter("bob", once, queue=False, window_ms=100), c.Busy)
    driver.tick(100)
    assert isinstance(driver.enter("bob", once, queue=False, window_ms=100), c.Granted)


def test_a_window_keeps_out_also_who_could_share() -> None:
    """No other claim is granted, not even in the same step."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", READ, window_ms=100)
    driver.enter("cat", READ)
    driver.leave("ann")
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    driver.tick(100)
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


# ── ends ─────────────────────────────────────────────────────────────────────────────


def test_max_hold_ends_one_lease_inside_its_session() -> None:
    """The next claim is granted; the session lives on and is told the reason."""
    driver = TableDriver()
    driver.enter("ann", X, max_hold_ms=100)
    driver.enter("ann", lock("y"))
    driver.enter("bob", X)
    driver.tick(99)
    assert driver.holders(X) == {"ann"}
    driver.tick(1)
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    assert driver.told(c.WAKE_LOOK) == ["ann"]
    assert "max_hold" in driver.look("ann").reason
    assert isinstance(driver.look("ann", 2), c.Granted)


def test_max_hold_counts_from_the_grant() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X, max_hold_ms=100)
    driver.tick(500)
    driver.leave("ann")
    driver.tick(99)
    assert driver.holders(X) == {"bob"}


def test_max_hold_of_a_lease_given_back_ends_nothing() -> None:
    driver = TableDriver()
    driver.enter("ann", X, max_hold_ms=100)
    driver.leave("ann")
    driver.enter("ann", X)
    driver.tick(100)
    assert driver.holders(X) == {"ann"}


def test_lock_delay_follows_a_loss_and_not_a_release() -> None:
    """A delay for resources that cannot check tokens: the lost holder has time to notice."""
    driver = TableDriver()
    driver.enter("ann", X, lock_delay_ms=100)
    driver.leave("ann")
    assert isinstance(driver.enter("bob", X, lock_delay_ms=100), c.Granted)
    driver.do(c.Expel("bob", "silent"))
    assert driver.inspect(X).closed_ms == 100
    assert isinstance(driver.enter("cat", X), c.Queued)
    driver.tick(100)
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


@pytest.mark.parametrize(
    "end",
    [
        c.Revoke("ann", 1, "admin", "why"),
        c.RevokeSession("ann", "admin", "why"),
        c.Expel("ann", "silent"),
    ],
)
def test_lock_delay_follows_every_kind_of_loss(end: c.Command) -> None:
    driver = TableDriver()
    driver.enter("ann", X, lock_delay_ms=100)
    driver.do(end)
    assert driver.inspect(X).closed_ms == 100


def test_a_waiter_that_is_lost_closes_nothing() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X, lock_delay_ms=100)
    driver.do(c.Expel("bob", "silent"))
    assert driver.inspect(X).closed_ms == 0
    assert driver.events()[-1][:2] == ("gave_up", "bob")


def test_a_closed_session_gives_everything_up_and_is_not_told() -> None:
    """Its client knows already. The claims behind it are granted."""
    driver = TableDriver()
    driver.enter("ann", X, lock_delay_ms=100)
    driver.enter("ann", lock("y"))
    driver.enter("bob", X, lock("y"))
    driver.do(c.Close("ann"))
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    assert driver.told(c.WAKE_ENDED) == []


def test_a_session_that_is_not_renewed_expires() -> None:
    """It ends at its deadline, by the store's clock, with all its claims, and is woken."""
    driver = TableDriver()
    driver.open("ann", ttl_ms=100)
    driver.do(c.Enter("ann", 1, (X,)))
    driver.enter("bob", X)
    driver.tick(99)
    assert driver.holders(X) == {"ann"}
    driver.tick(1)
    assert driver.holders(X) == {"bob"}
    assert driver.told(c.WAKE_ENDED) == ["ann"]
    assert "expired" in driver.renew("ann").reason


def test_a_renewed_session_lives_for_another_ttl() -> None:
    driver = TableDriver()
    driver.open("ann", ttl_ms=100)
    driver.do(c.Enter("ann", 1, (X,)))
    for _ in range(5):
        driver.wait(90)
        assert isinstance(driver.renew("ann"), c.Renewed)
    driver.tick(99)
    assert driver.holders(X) == {"ann"}
    driver.tick(1)
    assert driver.holders(X) == set()


def test_an_overdue_session_is_over_for_whoever_looks() -> None:
    """Even before a step has ended it, an expired lease is not reported as held."""
    driver = TableDriver()
    driver.open("ann", ttl_ms=100)
    driver.do(c.Enter("ann", 1, (X,)))
    driver.wait(100)
    assert isinstance(driver.look("ann"), c.Ended)
    assert isinstance(driver.do(c.Claims("ann")), c.Ended)
    assert driver.do(c.Sessions()).sessions[0].ended


def test_who_is_due_as_well_is_not_granted_first() -> None:
    """Two sessions expire at the same time: the second is never granted, so it delays nothing."""
    driver = TableDriver()
    driver.open("ann", "bob", ttl_ms=100)
    driver.do(c.Enter("ann", 1, (X,)))
    driver.do(c.Enter("bob", 1, (X,), lock_delay_ms=1_000))
    driver.enter("cat", X)
    driver.tick(100)
    assert driver.told(c.WAKE_GRANTED) == ["cat"]


def test_an_ended_session_never_comes_back() -> None:
    """A late `Open` does not revive it, neither soon nor after its original TTL."""
    driver = TableDriver()
    driver.open("ann", ttl_ms=100)
    driver.do(c.Close("ann"))
    for _ in range(6):
        driver.wait(ENDED_KEPT_MS // 6 - 1)
        assert isinstance(driver.do(c.Open("ann", 100, "late")), c.Ended)
        late = c.Enter("ann", 1, (X,), open=c.Open("ann", 100, "late"))
        assert isinstance(driver.do(late), c.Ended)
    assert driver.holders(X) == set()


def test_only_open_creates_a_session() -> None:
    """Every other command for an unknown session is answered with `Ended`."""
    driver = TableDriver()
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
        assert isinstance(driver.do(command), c.Ended)
    assert driver.do(c.Sessions()) == c.SessionsReply((), False)


def test_a_session_may_be_opened_with_its_first_claim() -> None:
    """Both happen in one step; repeating it changes nothing."""
    driver = TableDriver()
    ride = c.Enter("ann", 1, (X,), open=c.Open("ann", 100, "ann@host"))
    held = driver.do(ride)
    driver.wait(50)
    assert driver.do(ride) == held._replace(for_ms=50)
    driver.tick(50)
    assert driver.holders(X) == set()


def test_a_session_is_expelled_only_if_it_was_silent() -> None:
    """An unchanged renewal counter is the proof; without a counter its process is dead."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.renew("ann")
    assert driver.do(c.Expel("ann", "silent", renewals=0)) == c.Done(found=False)
    assert driver.holders(X) == {"ann"}
    assert driver.do(c.Expel("ann", "silent", renewals=1)) == c.Done(found=True)
    assert driver.told(c.WAKE_ENDED) == ["ann"]
    assert driver.renew("ann") == c.Ended("silent")


def test_a_revoked_holder_is_told_by_whom_and_why() -> None:
    """It learns from a wake, from `Look`, and from its keep-alive."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    assert driver.do(c.Revoke("ann", 1, "root@ops", "maintenance")) == c.Done()
    assert driver.told(c.WAKE_LOOK) == ["ann"]
    assert driver.told(c.WAKE_GRANTED) == ["bob"]
    gone = driver.look("ann")
    assert (gone.by, "maintenance" in gone.reason) == ("root@ops", True)
    assert driver.renew("ann", 1).looks == ((1, gone),)
    assert driver.do(c.Revoke("ann", 1, "root@ops", "again")) == c.Done(found=False)


def test_a_revoked_session_is_told_by_whom_and_why() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.do(c.RevokeSession("ann", "root@ops", "maintenance"))
    assert driver.told(c.WAKE_ENDED) == ["ann"]
    ended = driver.renew("ann")
    assert (ended.by, "maintenance" in ended.reason) == ("root@ops", True)


def test_more_sessions_may_end_at_once_than_one_step_takes_away() -> None:
    """One step has a bounded cost; later steps end the rest."""
    driver = TableDriver()
    crowd = [f"s{i:03}" for i in range(2 * REAPED_PER_STEP)]
    driver.open(*crowd, ttl_ms=100)
    for person in crowd:
        driver.do(c.Enter(person, 1, (lock(person),)))
    driver.tick(100)
    assert len(driver.do(c.Listing("lock", limit=1000)).resources) == REAPED_PER_STEP
    assert "expired" in driver.renew(crowd[-1]).reason
    assert driver.do(c.Listing("lock")).resources == ()


def test_an_overdue_session_is_over_also_before_its_turn_to_be_taken_away() -> None:
    """More sessions are due than one step ends; a keep-alive that comes too late revives none."""
    driver = TableDriver()
    crowd = [f"s{i:03}" for i in range(2 * REAPED_PER_STEP)]
    driver.open(*crowd, ttl_ms=100)
    driver.do(c.Enter(crowd[-1], 1, (X,)))
    driver.enter("zoe", X)
    driver.wait(100)
    assert "expired" in driver.renew(crowd[-1]).reason
    assert driver.told(c.WAKE_GRANTED) == ["zoe"]


# ── claim numbers ────────────────────────────────────────────────────────────────────


def test_a_claim_that_arrives_after_its_leave_is_refused() -> None:
    """If reordering let it in, it would hold for ever and nothing would release it."""
    driver = TableDriver()
    driver.open("ann")
    assert driver.leave("ann", n=1) == c.Done(found=False)
    assert driver.do(c.Enter("ann", 1, (X,))).why == c.WHY_FINISHED
    assert driver.holders(X) == set()


def test_a_repeated_claim_is_one_claim() -> None:
    driver = TableDriver()
    held = driver.enter("ann", X)
    assert driver.enter("ann", X, n=1) == held
    driver.leave("ann")
    assert driver.leave("ann") == c.Done(found=False)
    assert driver.enter("ann", X, n=1).why == c.WHY_FINISHED


def test_numbers_that_were_skipped_may_still_arrive() -> None:
    """Claims of one session may arrive out of order; each number counts once."""
    driver = TableDriver()
    driver.enter("ann", lock("c"), n=5)
    driver.enter("ann", lock("a"), n=2)
    driver.leave("ann", n=3)
    assert driver.enter("ann", lock("b"), n=3).why == c.WHY_FINISHED
    assert isinstance(driver.enter("ann", lock("b"), n=4), c.Granted)
    assert isinstance(driver.enter("ann", lock("d"), n=1), c.Granted)
    assert driver.enter("ann", lock("e"), n=0).why == c.WHY_FINISHED


def test_a_keep_alive_finishes_all_numbers_below_its_lowest() -> None:
    """The store may then forget older marks, and refuses claims that are still in flight."""
    driver = TableDriver()
    driver.enter("ann", X, n=9)
    driver.renew("ann", lowest=7)
    assert driver.enter("ann", lock("y"), n=6).why == c.WHY_FINISHED
    assert isinstance(driver.enter("ann", lock("y"), n=7), c.Granted)


@given(
    st.lists(
        st.tuples(st.sampled_from(["see", "forget"]), st.integers(min_value=1, max_value=12)),
        max_size=30,
    )
)
def test_numbers_are_remembered_as_in_a_set(steps: list[tuple[str, int]]) -> None:
    """The ranges of unseen numbers are equivalent to a plain set of seen ones."""
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
    driver = TableDriver()

    def proves(*claims: tuple[int, int]) -> bool:
        reply = driver.renew("ann", count=len(claims), checksum=checksum_of(claims))
        matches: bool = reply.matches
        return matches

    first = driver.enter("ann", X).token
    assert proves((1, first))
    driver.enter("bob", lock("y"))
    driver.enter("ann", lock("y"))
    assert proves((1, first), (2, 0))
    driver.leave("bob")
    assert not proves((1, first), (2, 0))
    second = driver.look("ann", 2).token
    assert proves((1, first), (2, second))
    third = driver.enter("ann", lock("z", "shared")).token
    newer = driver.convert("ann", "exclusive", n=3).token
    assert newer > third
    assert proves((1, first), (2, second), (3, newer))
    driver.do(c.Revoke("ann", 2, "root", "why"))
    assert not proves((1, first), (2, second), (3, newer))
    assert proves((1, first), (3, newer))


def test_a_keep_alive_says_how_its_claims_stand() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    looks = dict(driver.renew("bob", 1, 7).looks)
    assert isinstance(looks[1], c.Queued)
    assert isinstance(looks[7], c.Gone)


# ── tokens ───────────────────────────────────────────────────────────────────────────


def test_tokens_rise_when_the_wall_clock_is_set_back() -> None:
    driver = TableDriver()
    before = driver.enter("ann", X).token
    driver.wall_us -= 4_000_000
    assert driver.enter("ann", lock("y")).token > before


def test_tokens_rise_when_the_store_has_lost_everything() -> None:
    """The wall clock keeps them rising."""
    driver = TableDriver()
    before = driver.enter("ann", X).token
    empty = TableDriver()
    empty.now_ms, empty.wall_us = 0, driver.wall_us + 1
    assert empty.enter("ann", X).token > before


def test_a_block_of_tokens_belongs_to_its_claim_alone() -> None:
    driver = TableDriver()
    kept = driver.enter("ann", X, block=100).token
    assert driver.enter("bob", lock("y")).token >= kept + 100


# ── kept grants ──────────────────────────────────────────────────────────────────────


def test_who_keeps_a_grant_is_told_when_others_want_it() -> None:
    """By a wake at once, and in the reply to `Look`."""
    driver = TableDriver()
    assert not driver.enter("ann", X, block=100).wanted
    driver.enter("bob", X)
    assert driver.told(c.WAKE_WANTED) == ["ann"]
    assert driver.look("ann").wanted
    driver.leave("bob")
    assert not driver.look("ann").wanted


def test_a_reader_that_keeps_its_grant_is_told_of_an_upgrade() -> None:
    """The upgrade waits for it, although the queue is empty."""
    driver = TableDriver()
    driver.enter("ann", READ, block=100)
    driver.enter("bob", READ)
    driver.convert("bob", "exclusive")
    assert driver.told(c.WAKE_WANTED) == ["ann"]
    assert driver.look("ann").wanted


def test_a_keep_alive_makes_good_a_lost_wake_to_who_keeps() -> None:
    """A keep-alive may name retained claims beside the waiting ones."""
    driver = TableDriver()
    driver.enter("ann", X, block=100)
    driver.enter("bob", X)
    assert dict(driver.renew("ann", 1).looks)[1].wanted


def test_who_keeps_is_told_once_and_not_by_everyone_who_comes() -> None:
    """Ten thousand retaining readers must not be woken for every writer that queues."""
    driver = TableDriver()
    driver.enter("ann", X, block=100)
    driver.enter("bob", X)
    driver.enter("cat", X)
    assert driver.told(c.WAKE_WANTED) == []
    driver.leave("ann")
    assert driver.told(c.WAKE_GRANTED) == ["bob"]


def test_who_is_granted_what_others_wait_for_is_told_with_the_grant() -> None:
    """This applies to each of its places."""
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X, lock("y"), block=100)
    driver.enter("cat", lock("y"))
    driver.leave("ann")
    assert driver.told(c.WAKE_GRANTED) == driver.told(c.WAKE_WANTED) == ["bob"]


def test_who_only_holds_is_not_told() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.enter("bob", X)
    assert driver.wakes == []
    assert not driver.look("ann").wanted


# ── deadlocks ────────────────────────────────────────────────────────────────────────


def crossed() -> TableDriver:
    """Ann holds a and wants b, bob holds b and wants a."""
    driver = TableDriver()
    driver.enter("ann", lock("a"))
    driver.enter("bob", lock("b"))
    driver.enter("ann", lock("b"))
    driver.enter("bob", lock("a"))
    return driver


CYCLE = (
    c.Witness("ann", 1, True),
    c.Witness("ann", 2, False),
    c.Witness("bob", 1, True),
    c.Witness("bob", 2, False),
)


def test_the_victim_of_a_deadlock_gives_up_and_is_told() -> None:
    """Only its waiting claim is removed; it keeps what it holds."""
    driver = crossed()
    assert driver.do(c.Break("bob", 2, CYCLE, detail="the cycle")) == c.Done()
    assert driver.look("bob", 2) == c.Gone(c.WHY_DEADLOCK, "the cycle")
    assert driver.told(c.WAKE_LOOK) == ["bob"]
    assert driver.holders(lock("b")) == {"bob"}
    driver.leave("bob", 1)
    assert driver.told(c.WAKE_GRANTED) == ["ann"]


def test_a_deadlock_that_is_over_has_no_victim() -> None:
    driver = crossed()
    driver.leave("ann", 1)
    assert driver.do(c.Break("bob", 2, CYCLE)) == c.Done(found=False)
    assert isinstance(driver.look("bob", 2), c.Granted)


@pytest.mark.parametrize("changed", range(len(CYCLE)))
def test_a_deadlock_that_is_not_as_it_was_seen_has_no_victim(changed: int) -> None:
    """Every claim of the cycle must be unchanged."""
    driver = crossed()
    wrong = CYCLE[changed]._replace(held=not CYCLE[changed].held)
    seen = (*CYCLE[:changed], wrong, *CYCLE[changed + 1 :])
    assert driver.do(c.Break("bob", 2, seen)) == c.Done(found=False)
    assert isinstance(driver.look("bob", 2), c.Queued)


@pytest.mark.parametrize("witnesses", [CYCLE, ()])
def test_a_victim_is_never_a_holder(witnesses: tuple[c.Witness, ...]) -> None:
    """Only leave, expiry and revocation remove a holder."""
    driver = crossed()
    assert driver.do(c.Break("ann", 1, witnesses)) == c.Done(found=False)
    assert driver.holders(lock("a")) == {"ann"}


def test_a_victim_is_not_taken_twice() -> None:
    """A claim that was already revoked stays so, and its session's checksum stays correct."""
    driver = crossed()
    driver.do(c.Break("bob", 2, CYCLE))
    assert driver.do(c.Break("bob", 2, ())) == c.Done(found=False)
    assert [view.claims for view in driver.do(c.Sessions()).sessions] == [2, 1]


def test_a_conversion_may_be_the_victim_and_keeps_its_mode() -> None:
    driver = TableDriver()
    held = driver.enter("ann", UPDATE)
    driver.enter("bob", READ)
    driver.convert("ann", "exclusive")
    driver.enter("cat", READ)
    assert driver.do(c.Break("ann", 1, (), detail="the cycle")) == c.Done()
    assert driver.look("ann") == held
    assert driver.told(c.WAKE_LOOK) == ["ann"]
    assert driver.holders(X) == {"ann", "bob", "cat"}


def test_a_claim_may_pass_a_reservation_to_end_a_deadlock() -> None:
    """Bob has b reserved and waits for a, whose holder wants b: she passes, then he gets both."""
    driver = TableDriver()
    driver.enter("ann", lock("a"))
    driver.enter("bob", lock("a"), lock("b"))
    driver.enter("ann", lock("b"), block=100)
    assert driver.holders(lock("b")) == set()
    witnesses = (c.Witness("bob", 1, False), c.Witness("ann", 2, False))
    assert driver.do(c.Break("ann", 2, witnesses, ahead_of=("bob", 1))) == c.Done()
    assert driver.told(c.WAKE_GRANTED) == driver.told(c.WAKE_WANTED) == ["ann"]
    driver.leave("ann", 1)
    driver.leave("ann", 2)
    assert driver.told(c.WAKE_GRANTED) == ["bob"]


def test_who_passes_stands_directly_ahead() -> None:
    """It is ahead of the claim it passes and behind all that were ahead of that one."""
    driver = TableDriver()
    for person in ("ann", "bob", "cat", "dan", "eve"):
        driver.enter(person, X)
    driver.do(c.Break("eve", 1, (), ahead_of=("cat", 1)))
    assert driver.told(c.WAKE_LOOK).count("eve") == 1
    driver.do(c.Break("dan", 1, (), ahead_of=("cat", 1)))
    assert driver.waiting(X) == ["bob", "eve", "dan", "cat"]
    driver.do(c.Break("cat", 1, (), ahead_of=("eve", 1)))
    assert driver.waiting(X) == ["bob", "cat", "eve", "dan"]


def test_nobody_passes_backwards() -> None:
    """A claim that is already ahead keeps its place."""
    driver = TableDriver()
    for person in ("ann", "bob", "cat"):
        driver.enter(person, X)
    for other in (("cat", 1), ("ann", 1), ("bob", 1), ("nobody", 1)):
        assert driver.do(c.Break("bob", 1, (), ahead_of=other)) == c.Done(found=False)
    assert driver.waiting(X) == ["bob", "cat"]


@given(st.lists(st.integers(min_value=0, max_value=9), max_size=25))
def test_a_rank_just_before_another_is_behind_all_others(moves: list[int]) -> None:
    """However often claims pass each other, their ranks keep the order of a plain list."""
    line = [rank_of(5, arrival) for arrival in range(1, 11)]
    for arrival, at in enumerate(moves, start=11):
        moved = just_before(line[at], arrival)
        line.insert(at, moved)
        assert line == sorted(line)
        assert len(set(line)) == len(line)


# ── the log ──────────────────────────────────────────────────────────────────────────


def test_the_log_tells_the_whole_story() -> None:
    driver = TableDriver()
    driver.enter("ann", READ, value="v")
    driver.enter("bob", READ)
    driver.convert("ann", "exclusive")
    driver.leave("bob")
    driver.do(c.Proclaim("ann", 1, "w"))
    driver.enter("cat", X)
    driver.leave("cat")
    driver.do(c.Revoke("ann", 1, "root", "why"))
    driver.enter("dan", X)
    driver.do(c.Expel("dan", "silent"))
    assert [event[:2] for event in driver.events()] == [
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
    """It is read page by page, or only its last position; each event is returned once."""
    driver = TableDriver()
    for name in "abcd":
        driver.enter("ann", lock(name))
    page = driver.do(c.Events(1, limit=2))
    assert [event.name for event in page.events] == ["b", "c"]
    assert (page.end, page.oldest, page.more) == (4, 1, True)
    rest = driver.do(c.Events(page.events[-1].position))
    assert ([event.name for event in rest.events], rest.more) == (["d"], False)
    assert driver.do(c.Events(None)) == c.EventsReply((), 4, 1, False)
    assert TableDriver().do(c.Events(None)) == c.EventsReply((), 0, 1, False)


def test_the_log_is_bounded_and_says_where_it_begins() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    for i in range(LOG_KEPT + 200):
        driver.do(c.Proclaim("ann", 1, str(i)))
    reply = driver.do(c.Events(0, limit=1))
    assert reply.end == LOG_KEPT + 201
    assert reply.end - LOG_KEPT - 100 <= reply.oldest <= reply.end - LOG_KEPT + 1
    assert reply.events[0].position == reply.oldest


def test_watchers_are_woken_once_per_step_that_writes() -> None:
    """They are not woken by steps that write nothing, nor after they have stopped or ended."""
    driver = TableDriver()
    driver.open("ann", "bob", "eve")
    driver.do(c.Watch("ann", True))
    driver.do(c.Watch("ann", True))
    driver.do(c.Watch("bob", True))
    driver.enter("cat", X, lock("y"))
    assert driver.told(c.WAKE_EVENTS) == ["ann", "bob"]
    driver.renew("cat")
    assert driver.told(c.WAKE_EVENTS) == []
    driver.do(c.Watch("ann", False))
    driver.do(c.Close("bob"))
    driver.leave("cat")
    assert driver.told(c.WAKE_EVENTS) == []


# ── values, actors, views ────────────────────────────────────────────────────────────


def test_a_holder_may_change_its_value() -> None:
    driver = TableDriver()
    seat = c.Place("election", "boss", "exclusive")
    driver.enter("ann", seat, value="host-1")
    driver.enter("bob", seat, value="host-2")
    assert driver.do(c.Proclaim("ann", 1, "host-9")) == c.Done()
    assert driver.inspect(seat).holders[0].value == "host-9"
    assert isinstance(driver.do(c.Proclaim("bob", 1, "host-9")), c.Queued)
    assert isinstance(driver.do(c.Proclaim("ann", 2, "host-9")), c.Gone)


def test_members_of_a_party_never_wait() -> None:
    driver = TableDriver()
    party = c.Place("party", "workers", "shared")
    for person in ("ann", "bob", "cat"):
        assert isinstance(driver.enter(person, party, value=person), c.Granted)
    assert {claim.value for claim in driver.inspect(party).holders} == {"ann", "bob", "cat"}


def test_another_actor_may_answer_for_a_held_claim() -> None:
    driver = TableDriver()
    driver.enter("ann", X, actor="task 1")
    driver.enter("bob", X, actor="task 2")
    assert driver.do(c.Adopt("ann", 1, "task 3")) == c.Done()
    assert driver.inspect(X).holders[0].actor == "task 3"
    assert isinstance(driver.do(c.Adopt("bob", 1, "task 3")), c.Queued)


def test_resources_are_listed_by_name_and_prefix() -> None:
    """They are listed in order, page by page, and none with the prefix is left out."""
    driver = TableDriver()
    names = ["a", "a/b", "a/\U0010ffff", "a/\U0010ffff\U0010ffff", "b"]
    for name in reversed(names):
        driver.enter("ann", lock(name))
    driver.enter("ann", c.Place("election", "a/c", "exclusive"))
    page = driver.do(c.Listing("lock", limit=2))
    assert ([view.name for view in page.resources], page.more) == (names[:2], True)
    rest = driver.do(c.Listing("lock", after="a/b", limit=3))
    assert ([view.name for view in rest.resources], rest.more) == (names[2:], False)
    below = driver.do(c.Listing("lock", prefix="a/"))
    assert [view.name for view in below.resources] == names[1:4]


def test_sessions_are_listed_page_by_page() -> None:
    driver = TableDriver()
    driver.enter("ann", X)
    driver.open("bob", "cat")
    page = driver.do(c.Sessions(limit=2))
    assert [(view.session, view.claims) for view in page.sessions] == [("ann", 1), ("bob", 0)]
    assert page.more
    assert [view.session for view in driver.do(c.Sessions(after="bob")).sessions] == ["cat"]


def test_a_resource_is_shown_with_the_head_of_its_line() -> None:
    driver = TableDriver()
    for person in ("ann", "bob", "cat"):
        driver.enter(person, X)
    view = driver.do(c.Inspect("lock", "x", waiting_max=1))
    assert [claim.session for claim in view.waiting] == ["bob"]
    assert (view.holder_count, view.waiting_count) == (1, 2)


def test_reading_moves_nobody() -> None:
    """Reading grants nothing, even if something is due."""
    driver = TableDriver()
    driver.open("ann", ttl_ms=100)
    driver.do(c.Enter("ann", 1, (X,)))
    driver.enter("bob", X)
    driver.wait(100)
    assert driver.holders(X) == {"ann"}
    assert isinstance(driver.look("bob"), c.Queued)
    driver.tick()
    assert driver.holders(X) == {"bob"}


# ── limits ───────────────────────────────────────────────────────────────────────────

SMALL = Limits(waiting_max=1, claims_max=2, places_max=2, text_max=8)


def test_a_full_line_refuses() -> None:
    driver = TableDriver(limits=SMALL)
    driver.enter("ann", X)
    driver.enter("bob", X)
    assert driver.enter("cat", X) == c.Refused(c.WHY_QUEUE_FULL, "x", 2, 1)
    assert isinstance(driver.enter("cat", X, queue=False), c.Busy)


def test_a_session_has_so_many_claims() -> None:
    driver = TableDriver(limits=SMALL)
    driver.enter("ann", lock("a"))
    driver.enter("ann", lock("b"))
    refused = driver.enter("ann", lock("c"))
    assert (refused.why, refused.value, refused.limit) == (c.WHY_CLAIMS_FULL, 3, 2)
    driver.leave("ann")
    assert isinstance(driver.enter("ann", lock("c"), n=3), c.Granted)


def test_texts_are_bounded_in_bytes() -> None:
    driver = TableDriver(limits=SMALL)
    for name in ("owner", "metadata"):
        texts = {"owner": "", "metadata": "", name: "ä" * 5}
        refused = driver.do(c.Open("eve", 100, **texts))
        assert refused == c.Refused(c.WHY_TOO_LARGE, name, 10, 8)
    driver.do(c.Open("ann", 100, "ann"))
    assert driver.do(c.Enter("ann", 1, (X,), value="ä" * 5)).why == c.WHY_TOO_LARGE
    driver.do(c.Enter("ann", 1, (X,)))
    assert driver.do(c.Proclaim("ann", 1, "ä" * 5)).why == c.WHY_TOO_LARGE
    assert driver.do(c.Sessions()).sessions[0].session == "ann"


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
    driver = TableDriver(limits=SMALL)
    assert driver.enter("ann", *places).why == c.WHY_INVALID
    assert isinstance(driver.enter("ann", X, n=1), c.Granted)


# ── cost ─────────────────────────────────────────────────────────────────────────────


def rows_touched(driver: TableDriver, command: c.Command) -> int:
    assert isinstance(driver.rows, CountingRows)
    before = driver.rows.touched
    driver.do(command)
    return driver.rows.touched - before


def costs_on_one_lock(waiters: int) -> list[int]:
    driver = TableDriver(CountingRows())
    driver.open("ann", "bob")
    driver.do(c.Enter("ann", 1, (X,)))
    for n in range(1, waiters + 1):
        driver.do(c.Enter("bob", n, (X,)))
    late = c.Enter("bob", waiters + 1, (X,))
    early = c.Enter("bob", waiters + 2, (X,), head_start_ms=500)
    middle = c.Leave("bob", waiters // 2)
    commands = (late, early, c.Leave("ann", 1), middle, c.Renew("bob"))
    return [rows_touched(driver, command) for command in commands]


def costs_on_one_root(others: int) -> list[int]:
    """Every claim has an intention on the root, half of them granted and half reserved."""
    driver = TableDriver(CountingRows())
    driver.open("ann", "bob", "cat")
    for n in range(1, others + 1):
        driver.do(c.Enter("ann", n, tree(f"root/{n}", "shared")))
        driver.do(c.Enter("bob", n, tree(f"root/{n}", "exclusive")))
    enter = c.Enter("cat", 1, tree("root/new", "exclusive"))
    again = c.Enter("cat", 2, tree("root/new", "shared"))
    writer = c.Enter("cat", 3, tree("root", "exclusive"))
    commands = (enter, again, c.Leave("cat", 1), writer, c.Leave("ann", 1), c.Renew("cat"))
    return [rows_touched(driver, command) for command in commands]


def costs_of_permits(others: int) -> list[int]:
    driver = TableDriver(CountingRows())
    driver.open("ann", "bob")
    for n in range(1, others + 1):
        driver.do(c.Enter("ann", n, (permits(1, limit=others),)))
        driver.do(c.Enter("bob", n, (permits(1, limit=others),)))
    commands = (c.Leave("ann", 3), c.Enter("ann", others + 1, (permits(2, limit=others),)))
    return [rows_touched(driver, command) for command in commands]


@pytest.mark.parametrize("costs", [costs_on_one_lock, costs_on_one_root, costs_of_permits])
def test_a_step_costs_the_same_however_long_the_line(costs: object) -> None:
    """A step touches as many rows beside 40 other claims as beside 1,000."""
    assert callable(costs)
    few, many = costs(40), costs(1_000)
    assert few == many
    assert max(few) <= 100


def test_queueing_behind_an_exclusive_holder_reads_only_the_neighbours() -> None:
    """Nothing fits beside the holder, so the head of the queue need not be read."""
    driver = TableDriver(CountingRows())
    driver.open("ann", "bob", "cat")
    for n in (1, 2):
        driver.do(c.Enter("ann", n, (X,)))
    driver.do(c.Enter("bob", 1, (X,)))
    assert isinstance(driver.rows, CountingRows)
    before = driver.rows.scans
    driver.do(c.Enter("cat", 1, (X,)))
    assert driver.rows.scans - before == 2, "for the claim ahead and for the claim behind"


def test_memory_rows_can_be_copied() -> None:
    """Later changes do not affect a copy."""
    driver = TableDriver()
    driver.enter("ann", X)
    kept = driver.rows.copy()
    driver.leave("ann")
    assert TableDriver(kept).holders(X) == {"ann"}
    assert isinstance(kept, MemoryRows)
    assert len(kept) > len(driver.rows)
