"""The end of a session with many claims: in portions, and no lock is granted while still held."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import Limits, Table
from lockfast.sim.promises import snapshot
from lockfast.stores.redis.scripts import keys_of
from tests.redis.stepping import ScriptSteps
from tests.redis.watching import Monitor, Seen
from tests.servers.redis import RedisServer

ENDED_PER_STEP = Limits().ended_per_step
CLAIMS = 950
TTL_MS = 60_000
CALLS_PER_CLAIM = 3
"""The claim and its resource are read; writes are combined, so some calls serve all claims."""
READ_PER_CLAIM = 8
"""The most members of the index that a step reads for each claim it removes."""


def lock_of(n: int) -> tuple[c.Place, ...]:
    return (c.Place("lock", f"orders/{n:04}", "exclusive"),)


@pytest.fixture
def steps(server: RedisServer) -> Iterator[ScriptSteps]:
    made = ScriptSteps(server.url(), watched=False)
    yield made
    made.close()


def fill(steps: ScriptSteps | Table) -> None:
    """Session `many` holds all locks; `next` waits for the last one and for one in the middle."""
    steps.apply(c.Open("many", TTL_MS, "many"), 1000, 1000)
    steps.apply(c.Open("next", 2 * TTL_MS, "next"), 1000, 1000)
    for n in range(1, CLAIMS + 1):
        steps.apply(c.Enter("many", n, lock_of(n)), 1000, 1000 + n)
    for n, wanted in enumerate((CLAIMS, CLAIMS // 2), 1):
        steps.apply(c.Enter("next", n, lock_of(wanted)), 1001, 10_000)


ENDS: dict[str, c.Command] = {
    "closed": c.Close("many"),
    "revoked": c.RevokeSession("many", "admin", "enough"),
    "expelled": c.Expel("many", "silent"),
    "expired": c.Renew("next", waiting=(1, 2)),
}


def looks_of(reply: c.Reply) -> dict[int, object]:
    assert isinstance(reply, c.Renewed)
    return dict(reply.looks)


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_some_at_a_time_and_at_last_as_the_table_does(steps: ScriptSteps, how: str) -> None:
    """It is marked as ended first; later steps, of any client, remove its claims."""
    at_ms = 1000 + TTL_MS if how == "expired" else 2000
    table = Table(MemoryRows(), Limits(ended_per_step=CLAIMS))
    for store in (steps, table):
        fill(store)
        store.apply(ENDS[how], at_ms, 20_000)
    ended, _ = steps.apply(c.Look("many", CLAIMS), at_ms, 20_000)
    assert isinstance(ended, c.Ended)
    still_held, _ = steps.apply(c.Enter("next", 3, lock_of(CLAIMS), queue=False), at_ms, 20_000)
    assert isinstance(still_held, c.Busy), "nobody is let in before the claim is taken out"
    for taken in count(1):
        reply, _ = steps.apply(c.Renew("next", waiting=(1, 2)), at_ms, 20_000)
        looks = looks_of(reply)
        if all(isinstance(look, c.Granted) for look in looks.values()):
            break
        waiting = [look for look in looks.values() if isinstance(look, c.Queued)]
        assert {look.look_ms for look in waiting} == {1}, "it looks again at once"
        assert taken < CLAIMS // ENDED_PER_STEP + 3
    assert taken > CLAIMS // ENDED_PER_STEP // 2
    for _ in range(CLAIMS // ENDED_PER_STEP):
        steps.apply(c.Renew("next"), at_ms, 20_000)
    for part in ("claims", "resources"):
        mine, expected = (getattr(snapshot(s, at_ms, 20_000), part) for s in (steps, table))
        assert mine.keys() == expected.keys()
    sessions = snapshot(steps, at_ms, 20_000).sessions
    assert (sessions["many"].ended, sessions["many"].claims) == (
        snapshot(table, at_ms, 20_000).sessions["many"].ended,
        0,
    )


def test_an_ended_session_is_granted_nothing(steps: ScriptSteps) -> None:
    """Its waiting claims are removed later; until then, the locks they wait for stay free."""
    fill(steps)
    last = CLAIMS + 1
    steps.apply(c.Enter("next", 3, lock_of(last)), 1002, 20_000)
    steps.apply(c.Enter("many", last, lock_of(last)), 1002, 20_000)
    steps.apply(c.RevokeSession("many", "admin", "enough"), 1003, 20_000)
    steps.apply(c.Leave("next", 3, lock_of(last)), 1003, 20_000)
    view, _ = steps.apply(c.Inspect("lock", lock_of(last)[0].name), 1003, 20_000)
    assert isinstance(view, c.ResourceView)
    assert [claim.session for claim in view.holders] == []
    assert [claim.session for claim in view.waiting] == ["many"]


def scripts_in(seen: list[Seen]) -> list[int]:
    """Return how many calls each script made."""
    sizes: list[int] = []
    for one in seen:
        if one.by != "lua":
            sizes.append(0)
        else:
            sizes[-1] += 1
    return [size for size in sizes if size]


def test_no_script_does_more_than_a_part(server: RedisServer) -> None:
    """Closing a client with many locks takes several commands, none of them long."""
    url = server.url("many-locks")
    with lockfast.connect(url) as other:
        other.lock("warm-up").acquire().release()
        client = lockfast.connect(url, ttl=60)
        leases = [client.lock(f"orders/{n}").acquire() for n in range(CLAIMS)]
        session = leases[0].session
        fields = server.run("HLEN", keys_of("many-locks")[0].decode())
        assert fields > 2 * CLAIMS
        with Monitor(server) as monitor:
            assert other.revoke(session=session, reason="enough") == 1
            seen = monitor.seen()
        sizes = scripts_in(seen)
        assert max(sizes) < CALLS_PER_CLAIM * ENDED_PER_STEP
        assert sum(size > ENDED_PER_STEP for size in sizes) >= CLAIMS // ENDED_PER_STEP
        assert other.list("orders/") == []
        assert all(lease.lost.wait(30) for lease in leases)
        client.close()


def test_what_a_step_reads_grows_with_the_claims_it_removes(
    server: RedisServer, steps: ScriptSteps
) -> None:
    """The claims to remove wait in one queue: it is not read from its start for each of them.

    Reading as many more members as the step had already removed took 98 per claim.
    """
    one = lock_of(0)
    for session in ("first", "many", "next"):
        steps.apply(c.Open(session, TTL_MS, session), 1000, 1000)
    steps.apply(c.Enter("first", 1, one), 1000, 1000)
    for n in range(1, 2 * ENDED_PER_STEP + 1):
        steps.apply(c.Enter("many", n, one), 1000, 1000 + n)
    steps.apply(c.Enter("next", 1, one), 1000, 10_000)
    with Monitor(server) as monitor:
        steps.apply(c.Expel("many", "silent"), 2000, 20_000)
        seen = monitor.seen()
    assert sum(each.limit for each in seen) < READ_PER_CLAIM * ENDED_PER_STEP
    view, _ = steps.apply(c.Inspect("lock", one[0].name, 1000), 2000, 20_000)
    assert isinstance(view, c.ResourceView)
    assert view.waiting[-1].session == "next"
    assert len(view.waiting) == ENDED_PER_STEP + 1
