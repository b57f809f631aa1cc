"""The mode table: which properties it must have."""

from __future__ import annotations

from itertools import product

import pytest

from lockfast.core import modes as m
from lockfast.sim.model import COMPATIBLE

MODES = (m.EXCLUSIVE, m.SHARED, m.UPDATE, m.INTENT_SHARED, m.INTENT_EXCLUSIVE)
TREE_MODES = sorted(m.MODES_OF_KIND[m.TREE])
LOCK_MODES = sorted(m.MODES_OF_KIND[m.LOCK])


def test_conflict_is_mutual() -> None:
    """If one mode excludes another, the reverse is true: grants do not depend on who came first."""
    for one, other in product(m.CONFLICTS, repeat=2):
        assert (other in m.CONFLICTS[one]) == (one in m.CONFLICTS[other])


def test_every_mode_of_every_kind_has_its_conflicts() -> None:
    used = frozenset().union(*m.MODES_OF_KIND.values())
    assert used == m.CONFLICTS.keys()


def test_the_mode_table_is_the_one_promised() -> None:
    """The table is stated twice, in different forms, so that a mistake in one shows."""
    for one, other in product(MODES, repeat=2):
        assert ((one, other) in COMPATIBLE) == (other not in m.CONFLICTS[one])


def test_exclusive_is_alone() -> None:
    assert m.CONFLICTS[m.EXCLUSIVE] == m.CONFLICTS.keys()


def test_update_is_a_reader_of_which_there_is_one() -> None:
    assert m.UPDATE not in m.CONFLICTS[m.SHARED]
    assert m.UPDATE in m.CONFLICTS[m.UPDATE]
    assert m.CONFLICTS[m.UPDATE] == m.CONFLICTS[m.SHARED] | {m.UPDATE}


def test_intentions_stand_side_by_side() -> None:
    for one, other in product((m.INTENT_SHARED, m.INTENT_EXCLUSIVE), repeat=2):
        assert other not in m.CONFLICTS[one]
    assert m.INTENT_EXCLUSIVE in m.CONFLICTS[m.SHARED]
    assert m.INTENT_SHARED not in m.CONFLICTS[m.SHARED]


def test_permits_exclude_each_other_by_weight_only() -> None:
    assert m.PERMIT not in m.CONFLICTS[m.PERMIT]


@pytest.mark.parametrize("kind", [m.ELECTION, m.ONCE])
def test_there_is_one_leader_and_one_run(kind: str) -> None:
    assert m.MODES_OF_KIND[kind] == {m.EXCLUSIVE}


def test_members_of_a_party_never_conflict() -> None:
    assert m.MODES_OF_KIND[m.PARTY] == {m.SHARED}
    assert m.SHARED not in m.CONFLICTS[m.SHARED]


def test_every_change_of_a_lock_is_either_up_or_down() -> None:
    """A change that is an upgrade in one direction is a downgrade in the other."""
    changes = {(one, other) for one, other in product(LOCK_MODES, repeat=2) if one != other}
    assert changes == m.UPGRADES | m.DOWNGRADES
    assert {(new, old) for old, new in m.UPGRADES} == m.DOWNGRADES
    for old, new in m.UPGRADES:
        assert m.CONFLICTS[old] < m.CONFLICTS[new]


@pytest.mark.parametrize("group", [TREE_MODES, LOCK_MODES])
def test_joined_modes_have_the_rights_of_both_and_no_more(group: list[str]) -> None:
    """The result is the weakest mode of the kind that excludes whatever either mode excludes."""
    for one, other in product(group, repeat=2):
        both = m.CONFLICTS[one] | m.CONFLICTS[other]
        joined = m.join(one, other)
        assert joined in group
        assert both <= m.CONFLICTS[joined]
        for mode in group:
            if both <= m.CONFLICTS[mode]:
                assert m.CONFLICTS[joined] <= m.CONFLICTS[mode]


@pytest.mark.parametrize("group", [TREE_MODES, LOCK_MODES])
def test_joining_does_not_depend_on_the_order(group: list[str]) -> None:
    for one, other, third in product(group, repeat=3):
        assert m.join(one, other) == m.join(other, one)
        assert m.join(m.join(one, other), third) == m.join(one, m.join(other, third))
        assert m.join(one, one) == one
