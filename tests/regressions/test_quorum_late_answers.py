"""A majority's answers that arrive late grant nothing, and a lost lease is not released unheard.

Found by simulator seeds 7000865 and 7012484: an acceptance was counted although its node had lost
the claim since, and a claim that had lost its majority was released at the nodes before its holder
was told.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.core.modes import EXCLUSIVE
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.flights import Answers, Judge, Late
from lockfast.stores.quorum.node import Node
from lockfast.stores.quorum.session_records import SessionRecords
from lockfast.stores.quorum.wire import QuorumWire

TTL_MS = 900
OPEN = c.Open("s-1", TTL_MS, "tests")
PLACE = c.Place("lock", "orders", EXCLUSIVE)
START_US = 1_700_000_000_000_000


class World:
    """Three nodes, one client, and a clock that the test moves; also the client's runtime."""

    def __init__(self) -> None:
        self.ms = 1000
        self.nodes = [Node() for _ in range(3)]
        self.cut_off: set[int] = set()
        self.posted: list[m.Request] = []
        self.answers_are_slow = False
        self.records = SessionRecords(3, threading.RLock(), self.wall_us)
        self.wire = QuorumWire(self.records, self, self, "quorum+test://")  # type: ignore[arg-type]

    def now_ms(self) -> int:
        return self.ms

    def random(self) -> float:
        return 0.5

    def wall_us(self) -> int:
        return START_US + 1000 * self.ms

    def ask_node(self, node: int, request: m.Request | None) -> m.Answer | m.NoAnswer | None:
        if request is None:
            return None
        if node in self.cut_off:
            return m.NoAnswer(OSError("cut off"), maybe=True)
        return self.nodes[node].apply(request, self.ms, self.wall_us())[0]

    async def ask(
        self, requests: Sequence[m.Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        answers = [self.ask_node(node, request) for node, request in enumerate(requests)]
        if self.answers_are_slow:
            self.answers_are_slow = False
            await Arrival()
        return answers

    def post(self, requests: Sequence[m.Request | None]) -> None:
        for node, request in enumerate(requests):
            if request is not None:
                self.posted.append(request)
                self.ask_node(node, request)

    def send(self, command: c.Command) -> c.Reply:
        return finish(self.wire.send(command, 1000))

    def begin(self, command: c.Command) -> Coroutine[Any, Any, c.Reply]:
        """Send a command whose answers arrive when the test calls `finish`."""
        self.answers_are_slow = True
        sending = self.wire.send(command, 1000)
        sending.send(None)
        return sending

    def renew(self, held: dict[int, int]) -> c.Reply:
        return self.send(renewal(held))

    def restart(self, node: int) -> None:
        """Let a node lose its state; it accepts nothing for a while."""
        self.nodes[node].restart(self.ms, self.wall_us(), 10_000, empty=True)

    def holders(self) -> int:
        read = m.ReadLocks("lock", "orders")
        answers = [node.apply(read, self.ms, self.wall_us())[0] for node in self.nodes]
        return sum(isinstance(a, m.Locks) and a.locks[0].holder is not None for a in answers)


class Arrival:
    """Suspends a flight until its answers arrive."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def finish(sending: Coroutine[Any, Any, c.Reply]) -> c.Reply:
    try:
        sending.send(None)
    except StopIteration as stop:
        reply: c.Reply = stop.value
        return reply
    raise AssertionError("it waits")


def enter(n: int) -> c.Enter:
    return c.Enter("s-1", n, (PLACE,), open=OPEN)


def renewal(held: dict[int, int]) -> c.Renew:
    return c.Renew("s-1", len(held), checksum_of(held.items()), 0, ())


@pytest.fixture
def world() -> World:
    return World()


def token_of(reply: c.Reply) -> int:
    assert isinstance(reply, c.Granted)
    return reply.token


def test_an_acceptance_of_a_node_that_lost_the_claim_since(world: World) -> None:
    """Two nodes lose the claim, and keep-alives report it, before their acceptance arrives."""
    world.send(OPEN)
    entering = world.begin(enter(1))
    for node in (0, 1):
        world.restart(node)
        world.renew({})
    assert isinstance(finish(entering), c.Busy)


def test_answers_that_arrive_after_a_keep_alive_that_did_not_renew_the_claim(
    world: World,
) -> None:
    """The claim is at a node that the keep-alive did not reach and that ends it too early."""
    world.send(OPEN)
    world.cut_off = {0}
    entering = world.begin(enter(1))
    first_ballot = world.wall_us()
    world.ms += 400
    world.cut_off = {2}
    world.renew({})
    world.cut_off = set()
    assert token_of(finish(entering)) > first_ballot, "it was proposed again"
    record = world.records.sessions["s-1"]
    assert record.confirmed_ms(record.claims[1], 2) >= record.renewed_ms


def test_a_lost_claim_is_released_after_its_holder_was_told(world: World) -> None:
    token = token_of(world.send(enter(1)))
    world.restart(0)
    assert world.renew({1: token}) == c.Renewed(True)
    world.restart(1)
    assert world.renew({1: token}) == c.Renewed(False)
    assert world.holders() == 1, "the node that still has it keeps it"
    reply = world.send(c.Claims("s-1"))
    assert isinstance(reply, c.ClaimsReply)
    assert [(view.n, view.state) for view in reply.claims] == [(1, c.REVOKED)]
    assert world.renew({1: token}) == c.Renewed(False), "told again until it is released"
    world.send(c.Leave("s-1", 1))
    assert world.holders() == 0
    assert world.renew({}) == c.Renewed(True)


def test_a_claim_granted_during_a_keep_alive_is_not_given_up_unheard(world: World) -> None:
    """The client's account does not list the claim yet, so the keep-alive must not succeed."""
    world.send(OPEN)
    world.cut_off = {0}
    entering = world.begin(enter(1))
    world.ms += 800
    world.cut_off = {2}
    renewing = world.begin(renewal({}))
    token = token_of(finish(entering))
    with pytest.raises(OutcomeUnknownError):
        finish(renewing)
    assert world.posted == [], "nothing was released"
    world.cut_off = set()
    assert world.renew({1: token}) == c.Renewed(True)
