"""An `Open` was answered `Done` although a majority of the nodes had ended the session.

The session's first request reached one node late. When the session had expired at the two others,
the answers of one of these and of the slow node were taken for a majority that has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError
from lockfast.runtimes.threads import ThreadsRuntime
from lockfast.stores.memory import wall_us
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.flights import Answers, Judge, Late, Progress
from lockfast.stores.quorum.session_records import SessionRecords
from lockfast.stores.quorum.wire import QuorumWire

OWN = c.Open("own", 60_000, "own")
ENDED = m.Given(m.ENDED, "expired")
SLOW = m.Given(m.OK, found=True)
CREATED = m.Given(m.OK)


class AnswersInTurn:
    """Three nodes that answer one after the other, until the protocol has heard enough."""

    def __init__(self, *answers: m.Answer | m.NoAnswer | None) -> None:
        self._answers = answers
        self.heard = 0

    async def ask(
        self, requests: Sequence[m.Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        answers: list[m.Answer | m.NoAnswer | None] = [None] * len(self._answers)
        for node, answer in enumerate(self._answers):
            if judge(answers) is Progress.DONE:
                break
            answers[node] = answer
            self.heard += 1
        return answers

    def post(self, requests: Sequence[m.Request | None]) -> None:
        pass

    def close(self) -> None:
        pass


def opened(flights: AnswersInTurn) -> c.Reply:
    runtime = ThreadsRuntime()
    wire = QuorumWire(SessionRecords(3, runtime.mutex(), wall_us), flights, runtime, "nodes")
    return asyncio.run(wire.send(OWN, 5_000))


@pytest.mark.parametrize(
    "answers", [(ENDED, SLOW, ENDED), (SLOW, ENDED, ENDED), (ENDED, ENDED, SLOW)]
)
def test_a_session_that_a_majority_has_ended_is_not_opened(answers: tuple[m.Answer, ...]) -> None:
    assert opened(AnswersInTurn(*answers)) == c.Ended("expired")


def test_a_majority_that_has_the_session_suffices() -> None:
    flights = AnswersInTurn(CREATED, CREATED, ENDED)
    assert opened(flights) == c.Done(found=False)
    assert flights.heard == 2


def test_an_open_without_a_majority_either_way_has_an_unknown_outcome() -> None:
    with pytest.raises(OutcomeUnknownError, match="1 of 3 nodes have opened the session"):
        opened(AnswersInTurn(ENDED, SLOW, None))
