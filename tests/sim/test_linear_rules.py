"""What the search knows of conversions, several at once, head starts and retained locks.

Each pair of histories differs in one point: the first can be explained, the second cannot.
"""

from __future__ import annotations

import pytest

from lockfast.core.commands import Place
from lockfast.sim.checker import check_history
from lockfast.sim.linear import Verdict, check_name, explain
from tests.sim.told import A, B, Told, reads, writes

P = ("semaphore", "p")


def verdict(told: Told, name: tuple[str, str] = A) -> Verdict:
    return check_name(told.entries, name)


# ── conversions ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("told_at", "expected"), [(60, "explained"), (40, "impossible")])
def test_a_reader_becomes_the_writer_once_the_other_has_left(told_at: int, expected: str) -> None:
    told = Told()
    one = told.lease("c1", reads(A), 0, 2, 100, token=1)
    told.lease("c2", reads(A), 0, 4, 50, token=2)
    told.conversion(one, "exclusive", 20, told_at, token=3)
    assert verdict(told) == expected


@pytest.mark.parametrize(("token", "expected"), [(2, "explained"), (1, "impossible")])
def test_who_becomes_the_writer_has_a_new_token(token: int, expected: str) -> None:
    told = Told()
    one = told.lease("c1", reads(A), 0, 2, 100, token=1)
    told.conversion(one, "exclusive", 20, 22, token=token)
    assert verdict(told) == expected


@pytest.mark.parametrize(("told_at", "expected"), [(28, "explained"), (15, "impossible")])
def test_a_downgrade_lets_readers_in(told_at: int, expected: str) -> None:
    told = Told()
    writer = told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.conversion(writer, "shared", 20, 30, token=1)
    told.lease("c2", reads(A), 5, told_at, 50, token=2)
    assert verdict(told) == expected


@pytest.mark.parametrize(("told_at", "expected"), [(111, "explained"), (60, "impossible")])
def test_nobody_reads_beside_who_became_the_writer(told_at: int, expected: str) -> None:
    told = Told()
    one = told.lease("c1", reads(A), 0, 2, 110, token=1)
    told.conversion(one, "exclusive", 20, 22, token=2)
    told.lease("c2", reads(A), 30, told_at, 120, token=3)
    assert verdict(told) == expected


# ── several at once ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("told_at", "expected"), [(145, "explained"), (45, "impossible")])
def test_what_is_reserved_is_kept_from_those_behind(told_at: int, expected: str) -> None:
    """c2 waits for `a` and `b`; `b` is free, and c3 requests it after c2 was queued."""
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", writes(A, B), 10, 102, 140, token=3 if told_at > 100 else 4, queued=20)
    told.lease("c3", writes(B), 30, told_at, told_at + 10, token=5 if told_at > 100 else 3)
    assert verdict(told, B) == expected


def test_a_reservation_lets_the_compatible_pass() -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", reads(A, B), 10, 102, 140, token=3, queued=20)
    told.lease("c3", reads(B), 30, 45, 60, token=2)
    assert verdict(told, B) is Verdict.EXPLAINED


@pytest.mark.parametrize(("told_at", "expected"), [(102, "explained"), (60, "impossible")])
def test_several_are_held_when_each_is_free(told_at: int, expected: str) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", writes(A, B), 10, told_at, 140, token=2, queued=20)
    assert verdict(told) == expected


def test_whoever_holds_one_lock_and_wants_several_leaves_it_open() -> None:
    """The deadlock detector may let it pass a reservation, which the history does not show."""
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c1", writes(A, B), 10, 102, 140, token=2, queued=20)
    assert verdict(told) is Verdict.UNKNOWN


# ── head starts ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head_start", "asked", "expected"),
    [(50, 20, "explained"), (0, 20, "impossible"), (50, 90, "impossible")],
)
def test_a_head_start_passes_those_it_outweighs(head_start: int, asked: int, expected: str) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", writes(A), 10, 130, 140, token=3, queued=12)
    told.lease("c3", writes(A), asked, 102, 120, token=2, queued=asked + 2, head_start=head_start)
    assert verdict(told) == expected


def test_a_head_start_that_outweighs_is_not_ignored() -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", writes(A), 10, 102, 120, token=2, queued=12)
    told.lease("c3", writes(A), 20, 130, 140, token=3, queued=22, head_start=50)
    assert verdict(told) is Verdict.IMPOSSIBLE


def test_a_head_start_does_not_displace_a_holder() -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 100, token=1)
    told.lease("c2", writes(A), 20, 40, 60, token=2, head_start=5000)
    assert verdict(told) is Verdict.IMPOSSIBLE


# ── kept locks ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("third", "expected"), [(9000, "explained"), (102, "impossible")])
def test_a_kept_lock_that_was_given_up_has_new_tokens(third: int, expected: str) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 10, token=100, kept=True)
    told.lease("c1", writes(A), 3, 11, 15, token=101, kept=True)
    told.lease("c2", writes(A), 5, 20, 30, token=5000, queued=7)
    told.lease("c1", writes(A), 12, 40, 50, token=third, kept=True)
    assert verdict(told) == expected


@pytest.mark.parametrize(("told_at", "expected"), [(16, "explained"), (12, "impossible")])
def test_nobody_holds_beside_a_user_of_a_kept_lock(told_at: int, expected: str) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 15, token=100, kept=True)
    told.lease("c2", writes(A), 5, told_at, 30, token=5000, queued=7)
    assert verdict(told) == expected


@pytest.mark.parametrize(("told_at", "expected"), [(11, "explained"), (5, "impossible")])
def test_users_of_a_kept_lock_follow_each_other(told_at: int, expected: str) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 10, token=100, kept=True)
    told.lease("c1", writes(A), 3, told_at, 20, token=101, kept=True)
    assert verdict(told) == expected


# ── closed for a while, resized ──────────────────────────────────────────────────────


def permits(weight: int, limit: int) -> tuple[Place, ...]:
    return (Place(*P, "permit", weight, limit),)


@pytest.mark.parametrize(("closes", "expected"), [(True, "explained"), (False, "impossible")])
def test_a_name_that_may_be_closed_may_be_busy_with_nobody_there(
    closes: bool, expected: str
) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 10, token=1, closes=closes)
    told.busy("c2", writes(A), 20)
    assert verdict(told) == expected


@pytest.mark.parametrize(("told_at", "expected"), [(30, "explained"), (5, "impossible")])
def test_nobody_is_let_in_beside_another_though_it_may_be_closed(
    told_at: int, expected: str
) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 10, token=1, closes=True)
    told.lease("c2", writes(A), 0, told_at, 40, token=2)
    assert verdict(told) == expected


@pytest.mark.parametrize(("tokens", "expected"), [((2, 3), "explained"), ((3, 2), "impossible")])
def test_a_closed_name_opens_for_those_who_wait_in_their_order(
    tokens: tuple[int, int], expected: str
) -> None:
    told = Told()
    told.lease("c1", writes(A), 0, 2, 10, token=1, closes=True)
    first, second = tokens
    told.lease("c2", writes(A), 3, 50 if first == 2 else 80, 90, token=first, queued=5)
    told.lease("c3", writes(A), 6, 92 if first == 2 else 50, 99, token=second, queued=8)
    assert verdict(told) == expected


@pytest.mark.parametrize(("limit", "expected"), [(4, "explained"), (3, "impossible")])
def test_a_semaphore_has_no_more_permits_than_it_was_ever_given(limit: int, expected: str) -> None:
    """c2 was queued when the limit was raised."""
    told = Told()
    told.lease("c1", permits(2, 2), 0, 2, 90, token=1)
    told.lease("c2", permits(2, 2), 5, 50, 80, token=2, queued=8)
    entries = sorted(
        [*told.entries, {"at": 20_000, "resize": "p", "limit": limit}], key=lambda e: int(e["at"])
    )
    assert check_name(entries, P) == expected
    assert bool(check_history(entries)) is (expected == "impossible")


# ── what it does not know ────────────────────────────────────────────────────────────


def test_a_conversion_at_a_name_that_may_be_closed_leaves_it_open() -> None:
    told = Told()
    one = told.lease("c1", reads(A), 0, 2, 100, token=1, closes=True)
    told.conversion(one, "exclusive", 20, 22, token=2)
    assert explain(told.entries) == {A: Verdict.UNKNOWN}


def test_a_resize_of_unknown_size_leaves_it_open_and_is_no_problem() -> None:
    told = Told()
    told.lease("c1", permits(2, 2), 0, 2, 90, token=1)
    told.lease("c2", permits(2, 2), 5, 50, 80, token=2, queued=8)
    entries = [{"at": 0, "resize": "p"}, *told.entries]
    assert explain(entries) == {P: Verdict.UNKNOWN}
    assert check_history(entries) == []
