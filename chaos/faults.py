"""The faults of workers, connections and servers.

A fault is a function that strikes once: it breaks something, waits, and repairs it. It finds
everything it needs in the `Scene`. Durations are in TTLs, so that leases expire during some faults
and survive others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Protocol

from chaos import shim
from chaos.targets import NAMES, Cluster, Etcd, Promoting, Quorum, Target, ZooKeeper
from tests.servers.etcd import EtcdCluster
from tests.servers.proxy import DIRECTIONS, Cut, Direction, Shape
from tests.servers.sentinel import wait_until

HOUR_S: Final = 3600.0
BYTES_MAX: Final = 1500
"""Connections are cut within this many bytes: a few requests and replies."""


class Scene(Protocol):
    """What a fault can access."""

    target: Target
    rng: random.Random

    def wait(self, seconds: float) -> None:
        """Let time pass while the workers work."""

    def note(self, fault: str, on: str) -> None:
        """Record a fault in the history."""

    def resumed(self, on: str) -> None: ...
    def kill_worker(self) -> None:
        """Kill a worker with SIGKILL and start another in its place."""

    def stop_worker(self, seconds: float) -> None:
        """Stop a worker with SIGSTOP for this time."""


def kill(scene: Scene) -> None:
    scene.kill_worker()
    scene.wait(scene.rng.uniform(0.1, 0.5) * scene.target.ttl)


def stop(scene: Scene) -> None:
    scene.stop_worker(scene.rng.uniform(0.8, 1.7) * scene.target.ttl)


# ── connections ──────────────────────────────────────────────────────────────────────


def delay(scene: Scene) -> None:
    shape = Shape(delay_s=scene.rng.uniform(0.01, 0.08) * scene.target.ttl)
    for direction in scene.rng.sample(DIRECTIONS, scene.rng.choice((1, 2))):
        _shape(scene, "delay", direction, shape)
    scene.wait(scene.rng.uniform(0.4, 1.0) * scene.target.ttl)
    _heal(scene)


def drop(scene: Scene) -> None:
    _shape(scene, "drop", scene.rng.choice(DIRECTIONS), Shape(lost=True))
    scene.wait(scene.rng.uniform(0.1, 0.6) * scene.target.ttl)
    _heal(scene)


def reset(scene: Scene) -> None:
    for i in scene.target.struck(scene.rng):
        cut = Cut(scene.rng.choice(DIRECTIONS), scene.rng.randrange(BYTES_MAX))
        scene.note(f"reset at {cut.direction} byte {cut.after}", _lane(scene, i))
        scene.target.proxies[i].arm(cut)
    scene.wait(scene.rng.uniform(0.02, 0.15) * scene.target.ttl)
    if scene.rng.random() < 0.3:
        for proxy in scene.target.proxies:
            proxy.reset()
    _heal(scene)


def hole_requests(scene: Scene) -> None:
    _hole(scene, "request")


def hole_replies(scene: Scene) -> None:
    _hole(scene, "reply")


def _hole(scene: Scene, direction: Direction) -> None:
    _shape(scene, f"no {direction} passes", direction, Shape(held=True))
    scene.wait(scene.rng.uniform(0.3, 1.5) * scene.target.ttl)
    _heal(scene)


def _shape(scene: Scene, what: str, direction: Direction, shape: Shape) -> None:
    for i in scene.target.struck(scene.rng):
        scene.note(what, _lane(scene, i))
        scene.target.proxies[i].shape(direction, shape)


def _heal(scene: Scene) -> None:
    for proxy in scene.target.proxies:
        proxy.heal()


# ── servers ──────────────────────────────────────────────────────────────────────────


def freeze(scene: Scene) -> None:
    with ExitStack() as stack:
        for i in scene.target.struck(scene.rng):
            scene.note("server stopped", _lane(scene, i))
            stack.enter_context(scene.target.nodes[i].stopped())
        scene.wait(scene.rng.uniform(0.2, 1.2) * scene.target.ttl)


def restart(scene: Scene) -> None:
    _restart(scene, wiped=False)


def wipe(scene: Scene) -> None:
    _restart(scene, wiped=True)


def _restart(scene: Scene, *, wiped: bool) -> None:
    target = scene.target
    # A member that lost its data gets it back from the others (ZooKeeper) or cannot rejoin under
    # its identity (etcd), so all members are struck.
    whole = isinstance(target, Etcd | ZooKeeper) and (wiped or scene.rng.random() < 0.5)
    struck = list(range(len(target.nodes))) if whole else target.struck(scene.rng)
    for i in struck:
        scene.note("killed, data lost" if wiped else "server killed", _lane(scene, i))
        target.nodes[i].kill()
    scene.wait(scene.rng.uniform(0.02, 0.4) * target.ttl)
    for i in struck:
        if wiped:
            target.wipe(i)
        target.nodes[i].start()
    scene.wait(scene.rng.uniform(0.3, 0.8) * target.ttl)


def leader(scene: Scene) -> None:
    target = scene.target
    assert isinstance(target, Etcd | ZooKeeper)
    # ZooKeeper's leader cannot be asked to move.
    ways = ("moved", "killed", "stopped") if isinstance(target, Etcd) else ("killed", "stopped")
    how = scene.rng.choice(ways)
    scene.note(f"leader {how}", "store")
    if isinstance(target, Etcd) and how == "moved":
        _move_leader(target.cluster, scene.rng)
    elif how == "killed":
        first = target.cluster.leader()
        first.kill()
        scene.wait(scene.rng.uniform(0.2, 0.8) * target.ttl)
        first.start()
    else:
        with target.cluster.leader().stopped():
            scene.wait(scene.rng.uniform(0.3, 1.0) * target.ttl)
    scene.wait(0.3 * target.ttl)


def _move_leader(cluster: EtcdCluster, rng: random.Random) -> None:
    first = cluster.leader()
    other = rng.choice([member for member in cluster.members if member is not first])
    whose = other.call("/v3/maintenance/status", {})["header"]["member_id"]
    first.call("/v3/maintenance/transfer-leadership", {"targetID": whose})


def promote(scene: Scene) -> None:
    """Kill or stop a primary until a replica has taken over."""
    target = scene.target
    assert isinstance(target, Promoting)
    primary, how = target.primary(scene.rng), scene.rng.choice(("killed", "stopped"))
    scene.note(f"primary {how}", _lane(scene, target.nodes.index(primary)))
    if how == "killed":
        primary.kill()
        target.wait_for_failover(primary)
        primary.start()
    else:
        with primary.stopped():
            target.wait_for_failover(primary)
    wait_until(target.is_ok, "that the former primary is a replica")
    scene.wait(scene.rng.uniform(0.1, 0.5) * target.ttl)


def reshard(scene: Scene) -> None:
    """Move the slot of a lock to another node, with or without a pause between its keys.

    In half of the cases, also cut the clients' connections of one type.
    """
    assert isinstance(scene.target, Cluster)
    cluster = scene.target.cluster
    slot = scene.target.slot_of(scene.rng.choice(NAMES))
    source = cluster.owner(slot)
    target = scene.rng.choice([node for node in cluster.masters() if node is not source])
    pause_s = scene.rng.choice((0.0, 0.1 * scene.target.ttl))
    scene.note(f"slot {slot} moves", _lane(scene, cluster.nodes.index(source)))
    cluster.move_slot(slot, source, target, halfway=lambda moved: scene.wait(pause_s))
    if scene.rng.random() < 0.5:
        for node in cluster.nodes:
            node.call("CLIENT", "KILL", "TYPE", scene.rng.choice(("normal", "pubsub")))
    scene.wait(scene.rng.uniform(0.1, 0.3) * scene.target.ttl)


def disk(scene: Scene) -> None:
    """Fill the disk for a while; for etcd, raise the alarm that its quota would raise."""
    target = scene.target
    scene.note("disk full", "store")
    if isinstance(target, Etcd):
        alarm: dict[str, Any] = {"memberID": _member_id(target), "alarm": "NOSPACE"}
        target.cluster.call("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        scene.wait(scene.rng.uniform(0.3, 1.2) * target.ttl)
        target.cluster.call("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})
        return
    for each in target.shims:
        each.fill_disk(True)
    scene.wait(scene.rng.uniform(0.3, 1.2) * target.ttl)
    for each in target.shims:
        each.fill_disk(False)
    for node in target.nodes:
        # Redis exits when it cannot sync its file, as it is configured to.
        if node.has_exited():
            node.kill()
            node.start()


def _member_id(target: Etcd) -> str:
    return str(target.cluster.call("/v3/maintenance/status", {})["header"]["member_id"])


def clock(scene: Scene) -> None:
    """Move the wall clock of the struck nodes, or of the workers, by an hour and back."""
    target = scene.target
    struck = [0] if target.workers_have_shim else target.struck(scene.rng)
    for i in struck:
        ahead_s = scene.rng.choice((-HOUR_S, HOUR_S))
        scene.note(f"wall clock {ahead_s:+.0f} s", "store")
        target.shims[i].move_clock(ahead_s)
    scene.wait(scene.rng.uniform(0.3, 1.5) * target.ttl)
    for i in struck:
        target.shims[i].move_clock(0)
    scene.wait(scene.rng.uniform(0.1, 0.5) * target.ttl)


def askew(scene: Scene) -> None:
    """Kill nodes or cut connections while the clocks of two of five nodes are wrong."""
    for i, ahead_s in enumerate(scene.rng.sample((-HOUR_S, HOUR_S), 2)):
        scene.note(f"wall clock {ahead_s:+.0f} s", _lane(scene, i))
        scene.target.shims[i].move_clock(ahead_s)
    strike = scene.rng.choice((wipe, reset, reset, drop, hole_requests, hole_replies, freeze))
    strike(scene)


def _lane(scene: Scene, node: int) -> str:
    return "store" if len(scene.target.nodes) == 1 else f"node {node}"


# ── the list ─────────────────────────────────────────────────────────────────────────


class Fault(NamedTuple):
    """A kind of fault, and why a store cannot have it ("" if it can)."""

    strike: Callable[[Scene], None] | None
    text: str
    lacks: Callable[[Target], str]


def _always(target: Target) -> str:
    return ""


def _proxy(target: Target) -> str:
    return "" if target.has_proxies else "its clients use no proxy"


def _server(target: Target) -> str:
    return "" if target.has_servers else "it has no server"


def _led(target: Target) -> str:
    return "" if isinstance(target, Etcd | ZooKeeper) else "it has no leader"


def _promoting(target: Target) -> str:
    return "" if isinstance(target, Promoting) else "it has no replica to promote"


def _cluster(target: Target) -> str:
    return "" if isinstance(target, Cluster) else "it has no slots"


def _minority(target: Target) -> str:
    return shim.missing() if isinstance(target, Quorum) else "it is no majority of nodes"


def _shim(target: Target) -> str:
    return shim.missing()


def _disk(target: Target) -> str:
    return "" if isinstance(target, Etcd) else shim.missing()


FAULTS: Final[dict[str, Fault]] = {
    "calm": Fault(None, "nothing happens", _always),
    "kill": Fault(kill, "kill -9 of a worker", _always),
    "stop": Fault(stop, "SIGSTOP of a worker, for up to 1.7 TTLs", _always),
    "delay": Fault(delay, "requests or replies come late", _proxy),
    "drop": Fault(drop, "connections fall silent for good", _proxy),
    "reset": Fault(reset, "connections are reset at any byte", _proxy),
    "hole-requests": Fault(hole_requests, "requests do not pass, replies do", _proxy),
    "hole-replies": Fault(hole_replies, "replies do not pass, requests do", _proxy),
    "freeze": Fault(freeze, "SIGSTOP of a server", _server),
    "restart": Fault(restart, "kill -9 of a server, which comes back with its data", _server),
    "wipe": Fault(wipe, "kill -9 of a server, which comes back without its data", _server),
    "leader": Fault(leader, "the leader is moved, killed or stopped", _led),
    "promote": Fault(promote, "a primary is killed or stopped, its replica promoted", _promoting),
    "reshard": Fault(reshard, "slots move to other nodes, connections are cut", _cluster),
    "disk": Fault(disk, "no file grows", _disk),
    "clock": Fault(clock, "the wall clock moves an hour and back", _shim),
    "askew": Fault(askew, "clocks of a minority an hour off, and nodes killed and cut", _minority),
}
MIX: Final = "mix"
"""Any of the faults after which the store still keeps all its promises."""


def possible(target: Target, fault: str) -> str:
    """Return why a fault cannot be tried on a store; "" if it can."""
    if fault == MIX:
        return ""
    return target.lacks(fault) or FAULTS[fault].lacks(target)


def mixed(target: Target) -> list[str]:
    """Return the faults of a mix."""
    harmless = target.unpromised("calm")
    return [
        name
        for name, fault in FAULTS.items()
        if fault.strike and not possible(target, name) and target.unpromised(name) == harmless
    ]
