"""Simulated worlds with etcd: the shipped store over a modelled cluster of three members."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lockfast.core.commands import Command
from lockfast.ports import Store
from lockfast.sim.etcd.cluster import Cluster
from lockfast.sim.etcd.gateway import TXN
from lockfast.sim.etcd.handover import HandOvers
from lockfast.sim.etcd.transport import LABEL, SimEtcdNetwork
from lockfast.sim.runtime import Host
from lockfast.sim.services import ObservedStore, OnReply, Step
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import Address

if TYPE_CHECKING:
    from lockfast.sim.world import World

MEMBERS: Final = 3
ADDRESS: Final = Address(LABEL)
MARKED_EVERY: Final = 2
"""Schedules are short: mark the start of a queue more often than shipped."""


class EtcdService:
    """Three members, and clients that use the shipped store."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hosts = [world.host(f"m{number + 1}") for number in range(MEMBERS)]
        self.steps: list[Step] = []
        self.cluster = Cluster(self.hosts, world.network, self._observe)
        self._hand_overs = HandOvers(self.cluster.state, ADDRESS.root)

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        return ObservedStore(open_etcd(host, self.cluster), on_send, on_reply)

    def crash(self) -> None:
        for member in self.cluster.members:
            member.crash()
        self.cluster.depose()

    def start(self) -> None:
        for member in self.cluster.members:
            member.start()
        self.cluster.elect()

    def slow_down(self, each_us: int) -> None:
        self.cluster.slow_us = each_us

    def heal(self) -> None:
        self.cluster.heal()

    def session_ends_us(self, session: str) -> int | None:
        return None

    def disband(self) -> None:
        self.cluster.disband()

    def _observe(self, path: str, answer: object) -> None:
        self.steps.append((self._world.kernel.now, path, answer))
        if path.startswith(TXN):
            for text in self._hand_overs.forgotten():
                self._world.problem("hand-over", text)


def open_etcd(host: Host, cluster: Cluster) -> Store:
    """Return the shipped store on a host, with the modelled cluster as its network."""
    store = EtcdStore(ADDRESS, SimEtcdNetwork(host, cluster))
    store.context.marked_every = MARKED_EVERY
    return store
