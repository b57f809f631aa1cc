"""The scripts on the simulator's Redis: short paths, claim numbers, layouts, lack of memory."""

from __future__ import annotations

import pytest

from lockfast.conformance.commands import Commands, Profile
from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Table
from lockfast.errors import StoreError, StoreMisconfiguredError
from lockfast.sim.promises import NOTHING, snapshot
from tests.redis.stepping import ModelSteps
from tests.redis.test_shortcuts import HANDED_OVER, MOSTLY_FREE

STEPS = 60
NOW_MS = 1_700_000_000_000
A, B = ((c.Place("lock", name, "exclusive"),) for name in "ab")


class Both:
    """Scripts and table, given the same commands at the same time."""

    def __init__(self, *, watched: bool = False) -> None:
        self.scripts = ModelSteps(watched=watched)
        self._table = Table(MemoryRows())
        self._table.has_wall_clock = True
        self.now_ms = NOW_MS

    def send(self, command: c.Command) -> c.Reply:
        self.now_ms += 7
        step = command, self.now_ms, self.now_ms * 1000 + 3
        reply, wakes = self.scripts.apply(*step)
        assert (reply, wakes) == self._table.apply(*step), command
        return reply


@pytest.fixture
def both() -> Both:
    """Two sessions, of which the first holds a lock that the second waits for."""
    made = Both()
    for session in ("ann", "bob"):
        made.send(c.Open(session, 60_000, session, inbox=f"inbox of {session}"))
        made.send(c.Enter(session, 1, A, ""))
    return made


@pytest.mark.parametrize("profile", [MOSTLY_FREE, HANDED_OVER], ids=lambda p: p.name)
def test_the_short_way_leaves_what_the_long_way_does(profile: Profile) -> None:
    long, short = ModelSteps(), ModelSteps(watched=False)
    commands, seen = Commands(1, profile), NOTHING
    nothing = commands.next(seen)._replace(command=c.Close("nobody"))
    assert short.apply(*nothing) == long.apply(*nothing)  # writes the counters
    for _ in range(STEPS):
        step = commands.next(seen)
        if isinstance(step.command, c.Events):
            continue
        if isinstance(step.command, c.Enter):
            # As plain as most claims are.
            plain = c.Enter(*step.command[:5], open=step.command.open)
            step = step._replace(command=plain)
        assert short.apply(*step) == long.apply(*step), step
        assert short.stored() == long.stored(), step
        seen = snapshot(long, *step[1:], seen)
    assert short.shortcuts > 5
    assert short.hand_overs > 0 or profile is not HANDED_OVER


@pytest.mark.parametrize("row", ["s\x1fbob", "i\x1fbob", "c\x1fbob\x1f1"])
def test_a_damaged_row_of_the_next_is_treated_as_on_the_long_way(row: str) -> None:
    outcomes = []
    for watched in (True, False):
        both = Both(watched=watched)
        for session in ("ann", "bob"):
            both.send(c.Open(session, 60_000, session, inbox=f"inbox of {session}"))
            both.send(c.Enter(session, 1, A, ""))
        both.scripts.lose_row(row)
        try:
            outcome = str(both.scripts.apply(c.Leave("ann", 1, A), NOW_MS + 500, NOW_MS * 1000))
        except StoreError as error:
            outcome = f"{type(error).__name__}: {error}"
        outcomes.append((outcome, both.scripts.stored()))
    assert outcomes[0] == outcomes[1]


def test_a_claim_that_enters_after_the_clock_was_set_back_ranks_last(both: Both) -> None:
    both.send(c.Open("cat", 60_000, "cat"))
    both.now_ms -= 1000
    queued = both.send(c.Enter("cat", 1, A, ""))
    assert isinstance(queued, c.Queued)
    assert [blocker.session for blocker in queued.ahead] == ["bob"]


def test_a_number_below_the_lowest_in_use_is_refused(both: Both) -> None:
    """A late enter of a claim that its client has given up must not create it."""
    both.send(c.Enter("bob", 4, B, ""))
    both.send(c.Renew("bob", lowest=4))
    for n in (2, 3):
        assert isinstance(both.send(c.Enter("bob", n, B, "")), c.Refused)


def test_the_owner_of_a_waiting_conversion_is_named(both: Both) -> None:
    reader = (c.Place("lock", "b", "shared"),)
    both.send(c.Enter("ann", 2, reader, ""))
    both.send(c.Enter("bob", 2, reader, ""))
    both.send(c.Convert("ann", 2, 1, "exclusive"))
    refused = both.send(c.Convert("bob", 2, 1, "exclusive"))
    assert isinstance(refused, c.Refused)
    assert "ann" in refused


@pytest.mark.parametrize(
    "command",
    [
        c.Enter("ann", 2, B, ""),
        c.Enter("bob", 2, A, ""),
        c.Leave("ann", 1, A),
        c.Renew("ann"),
    ],
    ids=["free", "queued", "handed over", "renewed"],
)
def test_a_namespace_of_another_layout_is_not_changed(both: Both, command: c.Command) -> None:
    scripts = both.scripts
    scripts.set_layout(3)
    before = scripts.stored()
    with pytest.raises(StoreMisconfiguredError, match="shards"):
        both.send(command)
    assert scripts.stored() == before


def test_the_only_holder_under_another_layout_is_not_released() -> None:
    both = Both()
    both.send(c.Open("ann", 60_000, "ann"))
    both.send(c.Enter("ann", 1, A, ""))
    both.scripts.set_layout(3)
    before = both.scripts.stored()
    with pytest.raises(StoreMisconfiguredError, match="shards"):
        both.send(c.Leave("ann", 1, A))
    assert both.scripts.stored() == before


@pytest.mark.parametrize(
    "command",
    [
        c.Leave("ann", 1, A),
        c.Leave("ann", 1),
        c.Leave("bob", 1, A),
        c.Renew("ann"),
        c.Close("ann"),
        c.Expel("ann", "bob"),
        c.RevokeSession("ann", "root", "why"),
        c.Revoke("ann", 1, "root", "why"),
    ],
    ids=lambda command: type(command).__name__,
)
@pytest.mark.parametrize("watched", [False, True], ids=["", "watched"])
def test_a_server_out_of_memory_refuses_only_new_claims(command: c.Command, watched: bool) -> None:
    both = Both(watched=watched)
    for session in ("ann", "bob"):
        both.send(c.Open(session, 60_000, session, inbox=f"inbox of {session}"))
        both.send(c.Enter(session, 1, A, ""))
    both.scripts.run_out_of_memory()
    with pytest.raises(StoreError, match="OOM"):
        both.scripts.apply(c.Enter("bob", 2, B, ""), both.now_ms, both.now_ms * 1000)
    both.send(command)


@pytest.mark.parametrize(
    ("row", "command"),
    [("r\x1flock\x1fa", c.Listing("lock", "", limit=1)), ("s\x1fann", c.Sessions("", 1))],
    ids=["listing", "sessions"],
)
def test_a_page_is_full_although_an_aborted_step_left_an_entry(
    both: Both, row: str, command: c.Command
) -> None:
    """A short page that says "more" lets the merge of a cluster's shards skip names."""
    both.send(c.Enter("bob", 2, B, ""))
    both.scripts.lose_row(row)
    reply, _ = both.scripts.apply(command, NOW_MS + 500, NOW_MS * 1000)
    assert isinstance(reply, c.ListingReply | c.SessionsReply)
    assert [view[:2] for view in reply[0]] in ([("lock", "b")], [("bob", "bob")])
    assert not reply.more
