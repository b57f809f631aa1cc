"""The short paths store exactly what the general path stores, in one round trip."""

from __future__ import annotations

from time import monotonic

import pytest

from lockfast.conformance.commands import Commands, Profile
from lockfast.core import commands as c
from lockfast.sim.promises import NOTHING, snapshot
from tests.postgresql.stepping import PATIENCE_S, StoreSteps
from tests.servers.postgresql import PostgresServer

STEPS = 160
SEEDS = range(12)

PLAIN = Profile(
    "plain",
    tuple((c.Place("lock", name, mode),) for name, mode in (
        ("a", "exclusive"), ("a", "exclusive"), ("b", "exclusive"), ("b", "shared"),
    )),
    {"enter": 30, "leave": 25, "renew": 6, "open": 2, "close": 0.3, "revoke": 0.5, "convert": 0.5},
)  # fmt: skip
"""A world in which the short paths are used often."""


def _plain(dump: list[tuple[str, list[object]]]) -> list[str]:
    """Rows without the values of sequences: only their order is compared."""
    tokens = sorted({row[8] for kind, row in dump if kind == "c"})  # type: ignore[type-var]
    ranks = sorted({str(row[4]) for kind, row in dump if kind == "c"})
    shown = []
    for kind, row in dump:
        if kind == "c":
            row = [*row[:8], f"token {tokens.index(row[8])}", *row[9:]]
        text = f"{kind} {row}"
        for i, rank in enumerate(ranks):
            if rank:
                text = text.replace(rank, f"rank {i}")
        shown.append(text)
    return sorted(shown)


@pytest.mark.parametrize("seed", SEEDS)
def test_short_paths_leave_what_the_general_path_leaves(server: PostgresServer, seed: int) -> None:
    quick = StoreSteps(server.url(), watched=False, by_rows=True)
    general = StoreSteps(server.url(), watched=False, by_rows=True, shortcuts=False)
    stream = Commands(seed, PLAIN)
    seen = NOTHING
    kinds: dict[str, None] = {}
    for _ in range(STEPS):
        step = stream.next(seen)
        command = step.command
        if isinstance(command, c.Enter):
            kinds.update(dict.fromkeys(place.kind for place in command.places))
        reply, wakes = quick.apply(*step)
        expected, expected_wakes = general.apply(*step)
        assert type(reply) is type(expected), command
        assert [wake[:4] for wake in wakes] == [wake[:4] for wake in expected_wakes], command
        assert _plain(quick.dump()) == _plain(general.dump()), command
        seen = snapshot(quick, *step[1:], seen, kinds)
    assert quick.shortcuts_taken > STEPS // 16, "too few to show anything"
    quick.close()
    general.close()


def test_each_short_path_is_one_round_trip(server: PostgresServer) -> None:
    """Acquire a free lock, release it, queue, hand over, renew."""
    steps = StoreSteps(server.url(), watched=False)
    lock = (c.Place("lock", "a", "exclusive"),)

    def trips(command: c.Command) -> tuple[int, c.Reply]:
        before = steps.connection.exchanges
        reply = steps.server.apply(steps.connection, command, monotonic() + PATIENCE_S, [])
        return steps.connection.exchanges - before, reply

    for session in ("one", "two"):
        trips(c.Open(session, 60_000, session))
    told = [
        trips(c.Enter("one", 1, lock)),
        trips(c.Leave("one", 1, lock)),
        trips(c.Enter("one", 2, lock)),
        trips(c.Enter("two", 1, lock)),
        trips(c.Enter("one", 3, lock, queue=False)),
        trips(c.Leave("one", 2, lock)),
        trips(c.Look("two", 1)),
        trips(c.Renew("two", 1, 0)),
        trips(c.Leave("two", 1, lock)),
    ]
    names = [type(reply).__name__ for _, reply in told]
    assert names == [
        "Granted", "Done", "Granted", "Queued", "Busy", "Done", "Granted", "Renewed", "Done",
    ]  # fmt: skip
    assert [count for count, _ in told] == [1] * len(told)
    steps.close()
