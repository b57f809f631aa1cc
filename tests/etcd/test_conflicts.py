"""A step whose transaction conflicts with others is repeated, but not forever."""

from __future__ import annotations

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.derived.steps import CONFLICTS_MAX, PAUSE_MS_MAX, Conflicts
from tests.etcd.model import ModelNetwork

SPAN_MS = 5000


class Repeated:
    """The conflicts of one step, and the pauses between them."""

    def __init__(self) -> None:
        self.machine = ModelNetwork()
        self.pauses_ms: list[int] = []
        until_ms = self.machine.now_ms() + SPAN_MS
        self._conflicts = Conflicts("etcd", self.machine, self._pause, until_ms, None)

    async def _pause(self, span_ms: int) -> None:
        self.pauses_ms.append(span_ms)

    def conflict(self) -> None:
        run(self._conflicts.another())


def test_a_step_gives_up_after_many_conflicts() -> None:
    step = Repeated()
    for _ in range(CONFLICTS_MAX):
        step.conflict()
    with pytest.raises(StoreUnavailableError, match=f"after {CONFLICTS_MAX + 1} conflicting"):
        step.conflict()


def test_a_step_gives_up_when_its_time_is_over() -> None:
    step = Repeated()
    step.conflict()
    step.machine.server.now_us += SPAN_MS * 1000
    with pytest.raises(StoreUnavailableError, match="after 2 conflicting"):
        step.conflict()


def test_the_third_conflict_and_later_ones_are_followed_by_a_pause() -> None:
    step = Repeated()
    for _ in range(CONFLICTS_MAX):
        step.conflict()
    assert len(step.pauses_ms) == CONFLICTS_MAX - 2
    for count, pause_ms in enumerate(step.pauses_ms, 3):
        assert 1 <= pause_ms <= min(PAUSE_MS_MAX, 2 * count)
