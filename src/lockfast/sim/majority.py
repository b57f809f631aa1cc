"""The protocol of the quorum store alone, as small as possible: nodes and clients.

The lock table cannot serve as a node, because it chooses tokens itself, and tokens of independent
nodes have no common order. `stores/quorum` is the store that ships; this model has no sessions and
no keep-alives:

  - The client proposes the token, as a ballot. A node accepts it if it is above all ballots it
    has accepted, at most SKEW_MS ahead of the node's own clock, and no lease is alive.
  - A client that a majority accepts holds until a TTL after it *sent* its request, less a margin.
    Any two majorities share a node, so there is one holder, and tokens rise in the order of
    holding.
  - A client proposes no ballot twice, and only its proposer can release a ballot.
  - A node that restarts empty refuses everything for a TTL, while leases that it has lost may be
    alive, and accepts no ballot that it may have accepted before.
  - There is no queue: a client that is refused releases what it got and retries a little later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from lockfast.core.commands import Place
from lockfast.flow.session_life import margin_ms
from lockfast.sim.runtime import MS, Host
from lockfast.sim.world import World

SKEW_MS: Final = 500
"""A node refuses a ballot further ahead of its clock, which would block all others for long."""
PATIENCE_MS: Final = 50
"""How long a proposal waits for answers; during that time it blocks the others."""
BACK_OFF_MS: Final = (5, 60)


class Answer(NamedTuple):
    """The answer of a node to a ballot."""

    yes: bool
    highest: int
    """The highest ballot that it has accepted; the next one must be above it."""
    wall_us: int


class Node:
    """One node; it knows only what it accepted itself."""

    def __init__(self, world: World, name: str) -> None:
        self.host = world.host(name)
        self.down = False
        self._world = world
        self._highest = 0
        self._by = ""
        self._until_ms = 0
        self._silent_until_ms = 0

    def accept(self, ballot: int, by: str) -> Answer:
        """Accept or refuse a ballot."""
        now_ms, wall_us = self.host.clock.both()
        yes = (
            now_ms >= self._silent_until_ms
            and now_ms >= self._until_ms
            and self._highest < ballot <= wall_us + SKEW_MS * MS
        )
        if yes:
            if self._until_ms:
                expired = self.host.clock.tick_when(self._until_ms * MS)
                self._note("expired", self._highest, expired)
            self._highest, self._by = ballot, by
            self._until_ms = now_ms + self._world.ttl_ms
            self._note("granted", ballot, self._world.kernel.now, by=by)
        return Answer(yes, self._highest, wall_us)

    def give_back(self, ballot: int, by: str) -> None:
        """Release a ballot, after use or without a majority.

        Only that of this client: another may have proposed the same number.
        """
        if (ballot, by) == (self._highest, self._by) and self._until_ms:
            self._until_ms = 0
            self._note("released", ballot, self._world.kernel.now)

    def crash(self) -> None:
        self.down = True
        self._world.note_fault("node_crash", self.host.name)

    def restart(self, *, forgets: bool) -> None:
        """Restart, with all state or with none."""
        self.down = False
        if forgets:
            now_ms, wall_us = self.host.clock.both()
            self._highest, self._until_ms = wall_us + SKEW_MS * MS, 0
            self._silent_until_ms = now_ms + self._world.ttl_ms
            self._note("begins", 0, self._world.kernel.now, holds=[])
        self._world.history.note(self._world.kernel.now, resumed=self.host.name)

    def _note(self, what: str, token: int, at: int, **about: object) -> None:
        self._world.history.note(at, store=what, token=token, on=self.host.name, **about)


class Held(NamedTuple):
    """A lock that a majority has granted."""

    op: int
    token: int
    name: str
    deadline_ms: int


class MajorityClient:
    """Acquires one lock from a majority of nodes, and records what happens."""

    def __init__(self, world: World, host: Host, nodes: Sequence[Node], place: Place) -> None:
        self.world = world
        self.host = host
        self.nodes = nodes
        self.place = place
        self._highest = 0
        """The highest ballot that nodes have reported."""
        self._proposed: set[int] = set()
        self._correction_us = 0

    @property
    def enough(self) -> int:
        return len(self.nodes) // 2 + 1

    async def acquire(self, tries: int = 50) -> Held | None:
        """Propose ballots until a majority accepts one."""
        kernel, history = self.world.kernel, self.world.history
        op = history.ask(kernel.now, self.host.name, "acquire", places=(self.place,))
        low, high = BACK_OFF_MS
        for _ in range(tries):
            # Read the clock before sending: nodes start counting the TTL later.
            sent_ms, wall_us = self.host.clock.both()
            ballot = self._next_ballot(wall_us)
            deadline_ms = sent_ms + self.world.ttl_ms - margin_ms(self.world.ttl_ms)
            if await self._propose(ballot) and self.host.now_ms() < deadline_ms:
                history.got(kernel.now, op, "granted", token=ballot)
                return Held(op, ballot, self.place.name, deadline_ms)
            self._tell_all(ballot)
            await self.host.sleep(low + self.host.random() * (high - low))
        history.got(kernel.now, op, "timeout")
        return None

    def _next_ballot(self, wall_us: int) -> int:
        """Return a ballot above all that were reported, and never the same one twice: a late
        release of the first would release the second."""
        ballot = max(wall_us + self._correction_us, self._highest + 1)
        while ballot in self._proposed:
            ballot += 1
        self._proposed.add(ballot)
        return ballot

    async def _propose(self, ballot: int) -> bool:
        """Ask all nodes at once. Return True if a majority accepted in time."""
        yes: set[str] = set()
        answered: set[str] = set()
        enough = self.host.signal()

        def hear(node: Node, answer: Answer | None) -> None:
            answered.add(node.host.name)
            if answer is not None:
                if answer.yes:
                    yes.add(node.host.name)
                self._highest = max(self._highest, answer.highest)
                if ballot > answer.wall_us + SKEW_MS * MS:
                    # Our clock is far ahead of the nodes' clocks.
                    self._correction_us = answer.wall_us - self.host.clock.wall_us()
            if len(yes) >= self.enough or len(answered) == len(self.nodes):
                enough.set()

        def arrive(node: Node) -> None:
            # Where it is down, the kernel refuses the connection.
            answer = None if node.down else node.accept(ballot, self.host.name)
            told = partial(hear, node, answer)
            self.world.network.carry(node.host, self.host, told, told)

        for node in self.nodes:
            reached = partial(arrive, node)
            self.world.network.carry(self.host, node.host, reached, reached)
        await enough.wait(PATIENCE_MS)
        return len(yes) >= self.enough

    def release(self, held: Held) -> None:
        """Release the lock at all nodes; where the message is lost, it expires."""
        self.over(held)
        history, now = self.world.history, self.world.kernel.now
        op = history.ask(now, self.host.name, "release", of=held.op)
        self._tell_all(held.token)
        history.got(now, op, "done")

    def over(self, held: Held) -> None:
        """Record that the holder no longer relies on the lock."""
        at = self.world.kernel.now
        deadline = self.host.clock.tick_when(held.deadline_ms * MS)
        why = "released" if at <= deadline else "deadline"
        self.world.history.got(min(at, deadline), held.op, "over", why=why)

    def _tell_all(self, ballot: int) -> None:
        for node in self.nodes:
            give = partial(self._give_back, node, ballot)
            self.world.network.carry(self.host, node.host, give, give)

    def _give_back(self, node: Node, ballot: int) -> None:
        if not node.down:
            node.give_back(ballot, self.host.name)
