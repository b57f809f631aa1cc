"""Worlds of ZooKeeper: the shipped store over a modelled ensemble of three."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lockfast.core.commands import Command
from lockfast.ports import Store
from lockfast.sim.runtime import Host
from lockfast.sim.services import ObservedStore, OnReply, Step
from lockfast.sim.zookeeper.ensemble import LABEL, Ensemble, SimZooKeeperNetwork
from lockfast.sim.zookeeper.logged import Logged
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper.layout import Sizes

if TYPE_CHECKING:
    from lockfast.sim.world import World

MEMBERS: Final = 3
ROOT: Final = "/lockfast/default"


class ZooKeeperService:
    """Three members, and clients with the store that ships."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hosts = [world.host(f"m{number + 1}") for number in range(MEMBERS)]
        self.steps: list[Step] = []
        self.ensemble = Ensemble(self.hosts, world.network, self._observe)
        self._logged = Logged(self.ensemble.state, ROOT) if world.seed % 2 else None

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        network = SimZooKeeperNetwork(host, self.ensemble)
        # Few claims wait in a world, so its queues are divided into small parts.
        store = ZooKeeperStore(LABEL, ROOT, network, Sizes(1, 2))
        return ObservedStore(store, on_send, on_reply)

    def crash(self) -> None:
        self.ensemble.crash()

    def start(self) -> None:
        self.ensemble.start()

    def slow_down(self, each_us: int) -> None:
        self.ensemble.slow_us = each_us

    def heal(self) -> None:
        self.ensemble.start()
        self.ensemble.slow_us = 0

    def session_ends_us(self, session: str) -> int | None:
        return None

    def disband(self) -> None:
        self.ensemble.sessions.clear()

    def _observe(self, requests: object, answers: object) -> None:
        self.steps.append((self._world.kernel.now, requests, answers))
        for text in self._logged.mistakes() if self._logged is not None else ():
            self._world.problem("log", text)
