"""A proposal that fails only because a node is slow does not make a free lock look busy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lockfast.core import commands as c
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.flights import Answers, Judge, Late, Progress
from lockfast.stores.quorum.memory import MemoryNode
from lockfast.stores.quorum.session_records import SessionRecords
from lockfast.stores.quorum.wire import QuorumWire

PLACE = c.Place("lock", "nightly", "exclusive")
OTHER = c.Open("other", 60_000, "other")
OWN = c.Open("own", 60_000, "own")


class FlightsWithASlowNode:
    """Five nodes. Node 4 does not answer the first proposal in time."""

    def __init__(self) -> None:
        self.nodes = [MemoryNode(ThreadsRuntime().now_ms) for _ in range(5)]
        self.proposals = 0

    async def ask(
        self, requests: Sequence[m.Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        self.proposals += 1
        slow = 4 if self.proposals == 1 else -1
        answers: list[m.Answer | m.NoAnswer | None] = []
        for number, (node, request) in enumerate(zip(self.nodes, requests, strict=True)):
            assert request is not None
            answers.append(None if number == slow else node.apply(request)[0])
        assert judge(answers) is (Progress.SOON if slow >= 0 else Progress.DONE)
        return answers

    def post(self, requests: Sequence[m.Request | None]) -> None:
        for node, request in zip(self.nodes, requests, strict=True):
            if request is not None:
                node.apply(request)

    def close(self) -> None:
        pass


def test_a_claim_that_does_not_wait_is_proposed_again() -> None:
    flights = FlightsWithASlowNode()
    old = m.Take("other", 1, "lock", "nightly", wall_us(), open=OTHER)
    for node in flights.nodes[2:4]:  # the other client's release is still on its way here
        assert node.apply(old)[0].status == m.OK  # type: ignore[union-attr]
    runtime = ThreadsRuntime()
    wire = QuorumWire(SessionRecords(5, runtime.mutex(), wall_us), flights, runtime, "nodes")
    enter = c.Enter("own", 1, (PLACE,), queue=False, open=OWN)

    reply = asyncio.run(wire.send(enter, 5_000))

    assert isinstance(reply, c.Granted)
    assert flights.proposals == 2
