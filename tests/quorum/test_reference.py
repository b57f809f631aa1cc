"""The Redis script follows the rules in node.py, request by request."""

from __future__ import annotations

import random
from contextlib import closing
from time import monotonic
from typing import Any

import pytest

from lockfast.core.commands import Open
from lockfast.core.reasons import CLOSED
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.codec import answer_to, call_of, keys_of, script
from lockfast.stores.quorum.node import Node
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.resp import pack
from tests.quorum.nodes import FiveNodes

SEEDS = 30
STEPS = 150
START_US = 1_700_000_000_000_000
SKEW_US = 50_000
SILENCE_MS = 60_000
JUMP_US = 200_000_000


class RedisNode:
    """The script on a real server, given the clock."""

    def __init__(self, five: FiveNodes, namespace: str, *, is_known: bool = True) -> None:
        server = five.servers[0]
        if is_known:
            five.make_known(server, namespace)
        self._keys = keys_of(namespace)
        address = Address(str(server.socket), path=str(server.socket))
        self._connection = Connection(address, monotonic() + 10)

    def apply(self, request: m.Request, wall_us: int) -> tuple[m.Answer, list[m.FreeWake]]:
        name, arguments = call_of(request)
        fixed = (name, wall_us, SKEW_US, SILENCE_MS)
        packed = pack("EVAL", script(), len(self._keys), *self._keys, *fixed, *arguments)
        found = self._connection.exchange(packed, monotonic() + 10)
        if isinstance(found, Exception):
            raise found
        answer, wakes = found
        return answer_to(request, answer), [m.FreeWake(*wake) for wake in wakes]

    def close(self) -> None:
        self._connection.close()


class Script:
    """Random requests that interact with each other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._taken: list[m.Take] = []
        self._is_repeated = False
        self.wall_us = START_US
        self._jump_us = self._random.choice((-1, 1)) * JUMP_US

    def next(self) -> m.Request:
        rng = self._random
        if self._is_repeated:
            # Propose the same ballot for another lock.
            self._is_repeated = False
            last = self._taken[-1]
            self._taken.append(last._replace(n=len(self._taken) + 1, kind="lock", name="b"))
            return self._taken[-1]
        self.wall_us += rng.choice((0, 1, 500, 5_000, 200_000, 900_000))
        if rng.random() < 0.03:
            # Forward and back again: not so far that old records are removed.
            self._jump_us = -self._jump_us
            self.wall_us += self._jump_us
        session = rng.choice(("s1", "s2", "s2x"))
        kind, name = rng.choice((("lock", "a"), ("lock", "ab"), ("once", "a")))
        opening = Open(session, 1000, f"owner of {session}", "about", f"inbox-{session}", "p")
        made: list[Any] = [
            self._take(session, kind, name, opening),
            self._take(session, kind, name, opening),
            self._take(session, kind, name, None),
            self._give(),
            self._give(),
            m.Keep(session),
            m.Keep(session),
            opening,
            self._sync(opening),
            m.End(session, rng.choice((CLOSED, "silent")), rng.choice((None, 0, 1))),
            self._describe(),
            m.ReadClaims(session),
            m.ReadLocks(kind, name),
            m.ReadLocks("lock", rng.choice(("", "a", "b")), rng.choice(("", "a")), 1),
            m.ReadSessions(rng.choice(("", "s1")), rng.choice((1, 5))),
        ]
        request: m.Request = rng.choice(made)
        if isinstance(request, m.Take):
            self._taken.append(request)
            self._is_repeated = rng.random() < 0.3
        return request

    def _take(self, session: str, kind: str, name: str, opening: Open | None) -> m.Take:
        rng = self._random
        if self._taken and rng.random() < 0.1:
            return rng.choice(self._taken)
        return m.Take(
            session,
            len(self._taken) + 1,
            kind,
            name,
            self.wall_us + rng.choice((0, 0, 0, 0, -10, 10, 40_000, -60_000, 60_000)),
            rng.choice(("x", "y")),
            rng.choice((None, "", "v")),
            rng.choice((0, 0, 0, 300)),
            rng.choice((0, 0, 0, 400)),
            rng.choice((0, 0, 0, 2000)),
            rng.choice((0, self.wall_us - 5, self.wall_us - 9)),
            len(self._taken) + 1,
            opening,
        )

    def _some(self) -> m.Take:
        if not self._taken:
            return m.Take("s1", 1, "lock", "a", START_US)
        return self._random.choice(self._taken[-5:])

    def _give(self) -> m.Give:
        rng = self._random
        return m.Give(*self._some()[:5], rng.choice((0, 0, 500)), rng.random() < 0.3)

    def _describe(self) -> m.Describe:
        return m.Describe(*self._some()[:5], self._random.choice(("actor", "value")), "said")

    def _sync(self, opening: Open) -> m.Sync:
        rng = self._random
        known = [take for take in self._taken[-6:] if take.session == opening.session]
        claims = {
            take.n: m.Restored(
                take.n,
                take.kind,
                take.name,
                take.ballot,
                take.actor,
                take.value,
                take.lock_delay_ms,
                rng.random() < 0.7,
            )
            for take in known
            if rng.random() < 0.7
        }
        return m.Sync(opening, len(self._taken) + rng.choice((-1, 1)), tuple(claims.values()))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_script_answers_as_the_rules_say(five: FiveNodes, seed: int) -> None:
    reference = Node(SKEW_US)
    real = RedisNode(five, f"reference-{seed}")
    requests = Script(seed)
    try:
        for step in range(STEPS):
            request = requests.next()
            wall_us = requests.wall_us
            expected = reference.apply(request, wall_us // 1000, wall_us)
            found = real.apply(request, wall_us)
            assert found == expected, f"seed {seed}, step {step}: {request}"
    finally:
        real.close()


class BothNodes:
    """The script and the rules side by side, with one clock and one session."""

    def __init__(self, five: FiveNodes, namespace: str, *, is_flushed: bool = False) -> None:
        self.now_ms = START_US // 1000
        self.opening = Open("s1", 10 * SILENCE_MS, "owner", "", "inbox", "")
        self._script = RedisNode(five, namespace, is_known=not is_flushed)
        self._rules = Node(SKEW_US)
        if is_flushed:
            self._rules.restart(self.now_ms, self.now_ms * 1000, SILENCE_MS, empty=True)

    def take(self, n: int, *, window_ms: int = 0) -> m.Take:
        """Return a proposal of the current time as a ballot."""
        ballot = self.now_ms * 1000
        return m.Take("s1", n, "once", "a", ballot, window_ms=window_ms, open=self.opening)

    def status_of(self, request: m.Request) -> str:
        """Execute a request on both nodes; they must give the same answer."""
        wall_us = self.now_ms * 1000
        expected = self._rules.apply(request, self.now_ms, wall_us)
        found = self._script.apply(request, wall_us)
        assert found == expected
        answer, _ = found
        assert isinstance(answer, m.Taken | m.Given | m.SessionClaims)
        return answer.status

    def close(self) -> None:
        self._script.close()


def test_a_window_ends_at_its_last_millisecond(five: FiveNodes) -> None:
    with closing(BothNodes(five, "window")) as both:
        take = both.take(1, window_ms=2000)
        assert both.status_of(take) == m.OK
        assert both.status_of(m.Give(*take[:5])) == m.OK
        both.now_ms += 1999
        assert both.status_of(both.take(2)) == m.SHUT
        both.now_ms += 1
        assert both.status_of(both.take(3)) == m.OK


def test_a_claim_that_its_client_does_not_believe_leaves_no_window(five: FiveNodes) -> None:
    """It won no majority, so nothing ran in that window."""
    with closing(BothNodes(five, "unbelieved")) as both:
        assert both.status_of(both.take(1, window_ms=2000)) == m.OK
        both.now_ms += 1
        assert both.status_of(m.Sync(both.opening, 2, ())) == m.OK
        assert both.status_of(both.take(2)) == m.OK


def test_a_sync_that_arrives_late_leaves_later_proposals_alone(five: FiveNodes) -> None:
    """The claim was proposed again, and granted, after the request was created."""
    with closing(BothNodes(five, "late")) as both:
        first = both.take(1)._replace(flight=1)
        assert both.status_of(first) == m.OK
        assert both.status_of(m.Give(*first[:5], undo=True)) == m.OK
        both.now_ms += 1
        again = both.take(1)._replace(flight=3)
        assert both.status_of(again) == m.OK
        assert both.status_of(m.Sync(both.opening, 2, ())) == m.OK
        assert both.status_of(again) == m.OK, "the node still has it"
        assert both.status_of(both.take(2)) == m.HELD
        assert both.status_of(m.Sync(both.opening, 4, ())) == m.OK
        both.now_ms += 1
        assert both.status_of(both.take(2)) == m.OK, "a later one releases it"


def test_a_flushed_node_is_silent_until_every_lost_lease_has_ended(five: FiveNodes) -> None:
    with closing(BothNodes(five, "flushed", is_flushed=True)) as both:
        assert both.status_of(both.take(1)) == m.SILENT
        both.now_ms += SILENCE_MS + 2 * SKEW_US // 1000 - 1
        assert both.status_of(both.take(2)) == m.SILENT
        both.now_ms += 1
        assert both.status_of(both.take(3)) == m.OK
