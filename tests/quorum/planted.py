"""Bugs that a majority store could have, to check that the simulator finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from lockfast.sim.mix import Mix
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum import wire
from lockfast.stores.quorum.flights import Answers, Progress
from lockfast.stores.quorum.node import Node
from lockfast.stores.quorum.session_records import Claim, SessionRecord, SessionRecords
from lockfast.stores.quorum.wire import Proposal, QuorumWire
from tests.sim.planted.bugs import replace


class Bug(NamedTuple):
    name: str
    promises: frozenset[str]
    """The checks by which it may be found."""
    plant: Callable[[ExitStack], None]
    mix: Mix | None
    """Where to search for it; None: in the schedules of the default search."""


BUGS: list[Bug] = []

FORGETFUL = Mix(
    {"long_holds": {"names": 1}},
    {"node_crash": {"times": 40, "ms": (2, 40), "forgetting": 1.0}},
    "quorum",
    4,
    chaos_ms=2500,
)
"""Long leases on nodes that lose their state one after the other."""
CUT_OFF = Mix(
    {"long_holds": {"names": 1}},
    {"partition": {"times": 12, "ms": (300, 2200)}},
    "quorum",
    4,
    chaos_ms=2500,
)
"""Long leases whose holders cannot reach some of the nodes."""


def bug(
    name: str, *promises: str, mix: Mix | None = None
) -> Callable[[Callable[[ExitStack], None]], None]:
    def enter(plant: Callable[[ExitStack], None]) -> None:
        BUGS.append(Bug(name, frozenset(promises), plant, mix))

    return enter


@bug("a majority is half of the nodes", "exclusion", "tokens")
def _(stack: ExitStack) -> None:
    right = SessionRecords.__init__

    def wrong(self: SessionRecords, nodes: int, mutex: Any, wall_us: Any) -> None:
        right(self, nodes, mutex, wall_us)
        self.majority = nodes // 2

    replace(stack, SessionRecords, "__init__", wrong)


@bug("a majority is counted with duplicates", "exclusion", "tokens")
def _(stack: ExitStack) -> None:
    right = Proposal.late
    extra: dict[int, int] = {}

    def wrong(self: Proposal, node: int, answer: m.Answer) -> None:
        right(self, node, answer)
        is_yes = isinstance(answer, m.Taken) and answer.status == m.OK
        if is_yes and self.record.claims.get(self.n) is self.claim:
            # With a number that no node has.
            extra[id(self.claim)] = extra.get(id(self.claim), 0) + 1
            second = 100 + extra[id(self.claim)]
            self.record.cover(second, self.claim.sent_ms)
            self.claim.at.add(second)

    replace(stack, Proposal, "late", wrong)


@bug("a ballot is proposed again", "tokens")
def _(stack: ExitStack) -> None:
    def wrong(self: SessionRecords) -> int:
        return max(self.wall_us() // 50_000 * 50_000, self._highest)

    replace(stack, SessionRecords, "next_ballot", wrong)
    right = Node._take

    def equal(self: Node, request: m.Take, wall_us: int) -> m.Taken:
        lock = self._lock(request.kind, request.name)
        if lock.highest == request.ballot:
            lock.highest -= 1
        self._ballots.clear()
        return right(self, request, wall_us)

    replace(stack, Node, "_take", equal)


@bug("a node accepts any ballot", "tokens")
def _(stack: ExitStack) -> None:
    right = Node._take

    def wrong(self: Node, request: m.Take, wall_us: int) -> m.Taken:
        self._lock(request.kind, request.name).highest = 0
        self._ballots.clear()
        self.floor = 0
        return right(self, request, wall_us)

    replace(stack, Node, "_take", wrong)


@bug("a keep-alive counts without a majority", "exclusion", mix=CUT_OFF)
def _(stack: ExitStack) -> None:
    right = SessionRecord.confirmed_ms

    def wrong(self: SessionRecord, claim: Claim, majority: int) -> int:
        # As if every node that ever had it had just renewed it.
        return 1 << 60 if len(claim.at) >= majority else right(self, claim, majority)

    replace(stack, SessionRecord, "confirmed_ms", wrong)
    agrees = wire.Renewal.judge

    def judge(self: wire.Renewal, answers: Answers) -> Progress:
        return Progress.DONE if wire.count_answers(answers) else agrees(self, answers)

    replace(stack, wire.Renewal, "judge", judge)
    replace(stack, QuorumWire, "_require_majority", lambda self, answers: None)


@bug("what was won of a minority is not given back", "liveness", "left behind")
def _(stack: ExitStack) -> None:
    right = QuorumWire._not_won

    def wrong(
        self: QuorumWire, record: SessionRecord, n: int, claim: Claim, answers: Answers
    ) -> Any:
        post = self._flights.post
        self._flights.post = lambda requests: None  # type: ignore[method-assign]
        try:
            return right(self, record, n, claim, answers)
        finally:
            self._flights.post = post  # type: ignore[method-assign]

    replace(stack, QuorumWire, "_not_won", wrong)
    replace(stack, Node, "_sync", lambda self, request: self._claims(request.open.session))


@bug("a restarted node is not silent", "exclusion", mix=FORGETFUL)
def _(stack: ExitStack) -> None:
    right = Node.restart

    def wrong(self: Node, now_ms: int, wall_us: int, silence_ms: int, *, empty: bool) -> None:
        right(self, now_ms, wall_us, silence_ms, empty=empty)
        self.silent_until_ms = 0

    replace(stack, Node, "restart", wrong)


@bug("a node takes a ballot back from anybody", "exclusion", "tokens")
def _(stack: ExitStack) -> None:
    right = Node._give

    def wrong(self: Node, request: m.Give, wall_us: int) -> m.Given:
        lock = self._lock(request.kind, request.name)
        if lock.session and request.ballot >= lock.ballot - 20_000:
            request = request._replace(session=lock.session, n=lock.n, ballot=lock.ballot)
        return right(self, request, wall_us)

    replace(stack, Node, "_give", wrong)
