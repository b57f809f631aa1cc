"""A process of the embedded store is killed in any write of a short scenario.

The processes are simulated (`lockfast.sim.sqlite`), the store and SQLite are not. Tearing a write
at every byte makes no further difference, so each write is torn at a few places.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lockfast.core import commands as c
from lockfast.ports import PROCESS_DIED
from lockfast.sim.mix import Mix
from lockfast.sim.sqlite.disk import Killed
from lockfast.sim.sqlite.process import Process
from lockfast.sim.sqlite.service import Machine
from lockfast.sim.world import World
from lockfast.stores.sqlite.file import open_file

PLACES = (c.Place("lock", "a", "exclusive"),)
FIRST, SECOND, THIRD = range(3)
WRITES_MAX = 200


class Stage:
    """Three processes of a machine, one of which may be killed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.tokens: list[int] = []
        self._hosts = [client.host for client in machine.world.clients]

    def process(self, number: int) -> Process:
        return self._machine.process_of(self._hosts[number])

    def send(self, number: int, command: c.Command) -> c.Reply:
        process = self.process(number)

        def apply() -> c.Reply:
            return open_file(Path(self._machine.path), "apsw").apply(command, 1000)

        reply = process.call(apply)
        if isinstance(reply, c.Granted):
            self.tokens.append(reply.token)
        return reply

    def enter(self, number: int) -> c.Reply:
        session = f"s{number}"
        opening = c.Open(session, 60_000, "test", process=self.process(number).identity)
        return self.send(number, c.Enter(session, 1, PLACES, open=opening))

    def tell(self) -> None:
        """Acquire, wait, hand over, renew, release."""
        assert isinstance(self.enter(FIRST), c.Granted)
        assert isinstance(self.enter(SECOND), c.Queued)
        self.send(FIRST, c.Leave("s0", 1, PLACES))
        assert isinstance(self.send(SECOND, c.Look("s1", 1)), c.Granted)
        assert isinstance(self.send(SECOND, c.Renew("s1")), c.Renewed)
        self.send(SECOND, c.Leave("s1", 1, PLACES))

    def bury(self, victim: int) -> None:
        self._machine.end(self._hosts[victim])


def stage(seed: int, tell: Callable[[Stage], None]) -> None:
    world = World(Mix({"turns": {}}, store="sqlite", clients=3), seed)
    world.machine.rng = random.Random(seed)
    try:
        tell(Stage(world.machine))
    finally:
        world.disband()


@pytest.mark.parametrize("victim", [FIRST, SECOND])
@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_in_any_write_orphans_nothing(victim: int, seed: int) -> None:
    killed = [True]

    def tell(here: Stage, write: int) -> None:
        here.process(victim).kill_at = write
        try:
            here.tell()
            killed[0] = False
            return
        except Killed:
            here.bury(victim)
        other = SECOND if victim == FIRST else FIRST
        here.send(other, c.Leave(f"s{other}", 1, PLACES))
        reply = here.enter(THIRD)
        if isinstance(reply, c.Queued):
            # Only the dead one can be ahead: its death is noticed, and it is expelled.
            assert [blocker.session for blocker in reply.ahead] == [f"s{victim}"]
            here.send(THIRD, c.Expel(f"s{victim}", PROCESS_DIED))
            reply = here.send(THIRD, c.Look("s2", 1))
        assert isinstance(reply, c.Granted), (write, reply)
        view = here.send(THIRD, c.Inspect("lock", "a"))
        assert isinstance(view, c.ResourceView)
        assert [holder.session for holder in view.holders] == ["s2"]
        assert here.tokens[:-1] == sorted(set(here.tokens[:-1]))
        assert all(token <= reply.token for token in here.tokens)

    writes = 0
    while killed[0] and writes < WRITES_MAX:
        stage(seed, partial(tell, write=writes))
        writes += 1
    assert 3 < writes < WRITES_MAX
