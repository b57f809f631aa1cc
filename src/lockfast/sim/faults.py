"""Faults: each is a function that plans its episodes, with parameters from the mix.

A fault takes the world, its own source of randomness and its parameters, and calls `world.later`
for what it does and undoes. When the fault phase ends, the world heals: the network delivers
everything, every host runs and every server answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lockfast.sim.runtime import MS, Host

if TYPE_CHECKING:
    from lockfast.sim.client import SimClient
    from lockfast.sim.etcd.cluster import Member
    from lockfast.sim.world import World

Knobs: TypeAlias = Mapping[str, Any]

ALL: Final = frozenset(("memory", "etcd", "postgresql", "quorum", "redis", "sqlite", "zookeeper"))
"""Every store that worlds can use."""


class Fault(NamedTuple):
    plan: Callable[[World, random.Random, Knobs], None]
    knobs: Knobs
    forgets: bool = False
    """The store loses acknowledged writes, so exclusion is not promised."""
    stores: frozenset[str] = ALL
    """The stores that it applies to."""


def episodes(
    world: World, rng: random.Random, knobs: Knobs, begin: Callable[[], Callable[[], None]]
) -> None:
    """Begin an episode several times during the fault phase, and end each after a while."""
    for _ in range(knobs["times"]):
        low, high = knobs["ms"]
        lasts = int((low + rng.random() * (high - low)) * MS)

        def start(lasts: int = lasts) -> None:
            end = begin()
            world.later(lasts, end, undo=True)

        world.later(rng.randrange(world.chaos_us), start)


def some_client(world: World, rng: random.Random) -> SimClient:
    return world.clients[rng.randrange(len(world.clients))]


def some_servers(world: World, rng: random.Random) -> list[str]:
    """Choose one server, several or all; without a draw if there is only one."""
    names = [host.name for host in world.service.hosts]
    return rng.sample(names, rng.randrange(1, len(names) + 1)) if len(names) > 1 else names


# ── the network ──────────────────────────────────────────────────────────────────────


def delay(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Delay each message by a different span, so that messages are reordered."""

    def begin() -> Callable[[], None]:
        world.network.delay_us = int(knobs["late_ms"] * MS)
        return lambda: setattr(world.network, "delay_us", 0)

    episodes(world, rng, knobs, begin)


def loss(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Lose requests, replies and wakes."""

    def begin() -> Callable[[], None]:
        world.network.loss = knobs["share"]
        return lambda: setattr(world.network, "loss", 0.0)

    episodes(world, rng, knobs, begin)


def double(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Deliver messages twice, the second time late."""

    def begin() -> Callable[[], None]:
        world.network.double = knobs["share"]
        return lambda: setattr(world.network, "double", 0.0)

    episodes(world, rng, knobs, begin)


def reset(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Break the connection after the command took effect and before the reply arrives."""

    def begin() -> Callable[[], None]:
        world.network.reset = knobs["share"]
        return lambda: setattr(world.network, "reset", 0.0)

    episodes(world, rng, knobs, begin)


def partition(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Partition a client from the store."""

    def begin() -> Callable[[], None]:
        client = some_client(world, rng).name
        pairs = [(client, server) for server in some_servers(world, rng)]
        pairs += [(server, client) for client, server in pairs]
        world.note_fault("partition", client)
        for pair in pairs:
            world.network.cut(*pair)

        def mend() -> None:
            for pair in pairs:
                world.network.mend(*pair)

        return mend

    episodes(world, rng, knobs, begin)


def one_way(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Cut one direction between a client and the store."""

    def begin() -> Callable[[], None]:
        pair = [some_client(world, rng).name, some_servers(world, rng)[0]]
        rng.shuffle(pair)
        world.note_fault("one_way", pair[0])
        world.network.cut(*pair)
        return lambda: world.network.mend(*pair)

    episodes(world, rng, knobs, begin)


# ── clients ──────────────────────────────────────────────────────────────────────────


def pause(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Suspend all tasks of a client; its clock continues."""

    def begin() -> Callable[[], None]:
        client = some_client(world, rng)
        if client.host.paused or client.host.dead:
            return lambda: None
        world.note_fault("pause", client.name)
        client.host.pause()
        return lambda: world.resume(client)

    episodes(world, rng, knobs, begin)


def crash(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Kill a client, or all but one in the same instant, and restart them later."""

    def begin() -> Callable[[], None]:
        chosen = some_client(world, rng)
        killed = [chosen]
        if knobs["together"] and rng.random() < knobs["together"]:
            killed = [client for client in world.clients if client is not chosen]
        killed = [client for client in killed if not client.host.dead]
        for client in killed:
            world.note_fault("crash", client.name)
            world.kill(client)

        def restart() -> None:
            for client in killed:
                world.revive(client)

        return restart

    episodes(world, rng, knobs, begin)


# ── the store ────────────────────────────────────────────────────────────────────────


def store_crash(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Take the store down, and restart it with all its state."""

    def begin() -> Callable[[], None]:
        world.note_fault("store_crash", world.service.hosts[0].name)
        world.service.crash()
        return world.service.start

    episodes(world, rng, knobs, begin)


def amnesia(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Restart the store with no state."""

    def begin() -> Callable[[], None]:
        world.note_fault("amnesia", world.service.hosts[0].name)
        world.service.crash()
        world.forgetful.forget_all()
        return world.service.start

    episodes(world, rng, knobs, begin)


def power_loss(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Restart the store without the writes that it had not persisted."""
    for at in range(0, world.chaos_us, int(knobs["sync_ms"] * MS)):
        world.later(at, world.forgetful.sync)

    def begin() -> Callable[[], None]:
        world.note_fault("power_loss", world.service.hosts[0].name)
        world.forgetful.forget_unsynced()
        world.service.crash()
        return world.service.start

    episodes(world, rng, knobs, begin)


def failover(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Kill the store and promote a replica that lags behind, at a different address."""
    first = world.service.hosts[0]

    def sync() -> None:
        if world.service.hosts[0] is first:
            world.forgetful.sync()

    for at in range(0, world.chaos_us, int(knobs["lag_ms"] * MS)):
        world.later(at, sync)

    def begin() -> Callable[[], None]:
        if world.service.hosts[0] is not first:
            return lambda: None
        world.note_fault("failover", first.name)
        world.service.crash()
        return world.fail_over

    # There is only one replica.
    episodes(world, rng, {**knobs, "times": min(1, knobs["times"])}, begin)


def slow(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Make the store take a while for each command, one after another."""

    def begin() -> Callable[[], None]:
        world.service.slow_down(int(knobs["each_ms"] * MS))
        return lambda: world.service.slow_down(0)

    episodes(world, rng, knobs, begin)


def out_of_memory(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Let Redis reach its maxmemory: commands that store something are refused."""

    def begin() -> Callable[[], None]:
        server = world.redis
        world.note_fault("out_of_memory", server.host.name)
        server.out_of_memory = True
        return lambda: setattr(server, "out_of_memory", False)

    episodes(world, rng, knobs, begin)


def backend_killed(world: World, rng: random.Random, knobs: Knobs) -> None:
    """An administrator terminates backends of PostgreSQL, most of them in the middle of a step."""

    def kill() -> None:
        backends = list(world.postgresql.backends)
        at_work = [backend for backend in backends if backend.tx or not backend.is_idle]
        candidates = at_work if at_work and rng.random() < 0.9 else backends
        if candidates:
            candidates[rng.randrange(len(candidates))].terminate()

    for _ in range(knobs["times"]):
        world.later(rng.randrange(world.chaos_us), kill)


# ── a cluster of etcd ────────────────────────────────────────────────────────────────


def leader_change(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Depose the leader: no agreement for a while, then the TTL of every lease restarts."""

    def begin() -> Callable[[], None]:
        world.note_fault("leader_change", "etcd")
        world.cluster.depose()
        return world.cluster.elect

    episodes(world, rng, knobs, begin)


def member_crash(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Take down one member; if it was the leader, another is elected after a while."""

    def begin() -> Callable[[], None]:
        cluster = world.cluster
        member = cluster.members[rng.randrange(len(cluster.members))]
        if any(other.down or other.isolated for other in cluster.members):
            return lambda: None
        world.note_fault("member_crash", member.host.name)
        member.crash()
        _elect_another(world, rng, member)
        return member.start

    episodes(world, rng, knobs, begin)


def member_cut_off(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Cut one member off from the others; it answers clients from its own state."""

    def begin() -> Callable[[], None]:
        cluster = world.cluster
        member = cluster.members[rng.randrange(len(cluster.members))]
        if any(other.down or other.isolated for other in cluster.members):
            return lambda: None
        world.note_fault("member_cut_off", member.host.name)
        member.cut_off()
        _elect_another(world, rng, member)
        return member.rejoin

    episodes(world, rng, knobs, begin)


def _elect_another(world: World, rng: random.Random, member: Member) -> None:
    if world.cluster.leader is member:
        world.cluster.depose()
        world.later(rng.randrange(1, 800 * MS), world.cluster.elect, undo=True)


def member_lag(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Make followers apply committed entries late."""

    def begin() -> Callable[[], None]:
        late_us = int(knobs["late_ms"] * MS)
        world.cluster.lag({member: rng.randrange(late_us) for member in world.cluster.members})
        return lambda: world.cluster.lag({})

    episodes(world, rng, knobs, begin)


def compaction(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Compact the history up to the latest revisions."""

    def compact() -> None:
        revision = world.cluster.state.mvcc.revision - rng.randrange(3)
        if revision > max(1, world.cluster.state.mvcc.compacted):
            world.cluster.state.compact({"revision": str(revision)})

    for _ in range(knobs["times"]):
        world.later(rng.randrange(world.chaos_us), compact)


def no_space(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Raise the NOSPACE alarm: nothing can be written, but keys can be deleted."""

    def begin() -> Callable[[], None]:
        world.note_fault("no_space", "etcd")
        world.cluster.state.no_space = True
        return lambda: setattr(world.cluster.state, "no_space", False)

    episodes(world, rng, knobs, begin)


# ── clocks ───────────────────────────────────────────────────────────────────────────


def drift(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Give every clock a different rate from the start."""
    most = knobs["ppm"]
    for host in _free_clocks(world):
        host.clock.drift(rng.randrange(-most, most + 1))


def _free_clocks(world: World) -> list[Host]:
    """Return the hosts whose clocks may jump, the store first.

    Leave out the store if it may lose state: then only the wall clocks of the store and its replica
    keep tokens rising.
    """
    if world.mix.loses_state:
        return [client.host for client in world.clients]
    return list(world.hosts.values())


def wall_jump(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Set a wall clock forward or back."""
    hosts = _free_clocks(world)
    for _ in range(knobs["times"]):
        # Choose the store half of the time, where a clock can matter.
        host = hosts[0] if rng.random() < 0.5 else hosts[rng.randrange(len(hosts))]
        ahead_us = int((rng.random() * 2 - 1) * knobs["by_s"] * 1_000_000)
        world.later(
            rng.randrange(world.chaos_us),
            lambda host=host, ahead_us=ahead_us: host.clock.jump(ahead_us),  # type: ignore[misc]
        )


# ── a majority of nodes ──────────────────────────────────────────────────────────────


def node_crash(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Take down one node, and restart it with all its state or with none."""

    def begin() -> Callable[[], None]:
        node = world.nodes[rng.randrange(len(world.nodes))]
        forgets = rng.random() < knobs["forgetting"]
        if node.down:
            return lambda: None
        world.note_fault("node_crash", node.host.name, forgets=forgets)
        node.down = True
        return lambda: node.restart(forgets=forgets)

    episodes(world, rng, knobs, begin)


def node_pause(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Suspend one node; messages sent to it in that time arrive later."""

    def begin() -> Callable[[], None]:
        host = world.nodes[rng.randrange(len(world.nodes))].host
        if host.paused:
            return lambda: None
        world.note_fault("node_pause", host.name)
        host.pause()
        return host.resume

    episodes(world, rng, knobs, begin)


def node_clocks(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Set the clocks of a minority an hour off, forward or back, for a while or until the end."""
    wrong = [node.host for node in rng.sample(world.nodes, (len(world.nodes) - 1) // 2)]
    jump_us = rng.choice((-1, 1)) * int(knobs["by_s"] * 1_000_000)
    comes_back = rng.random() < 0.5

    def begin() -> Callable[[], None]:
        for host in wrong:
            world.note_fault("node_clock", host.name)
            host.clock.jump(jump_us)
        return put_right

    def put_right() -> None:
        for host in wrong if comes_back else ():
            host.clock.jump(-jump_us)

    episodes(world, rng, knobs, begin)


def client_clock(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Set a client's wall clock."""
    for _ in range(knobs["times"]):
        host = some_client(world, rng).host
        ahead_us = int((rng.random() * 2 - 1) * knobs["by_s"] * 1_000_000)
        world.later(
            rng.randrange(world.chaos_us),
            lambda host=host, ahead_us=ahead_us: host.clock.jump(ahead_us),  # type: ignore[misc]
        )


# ── processes of one machine ─────────────────────────────────────────────────────────


def killed_in_step(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Kill a process in the middle of a write to the database, and restart it later."""

    def begin() -> Callable[[], None]:
        client = some_client(world, rng)
        if client.host.dead or client.host.paused:
            return lambda: None
        world.note_fault("killed_in_step", client.name)
        process = world.machine.process_of(client.host)
        process.kill_at = rng.randrange(knobs["writes"])

        def end() -> None:
            process.kill_at = None
            if process.dead and not client.host.dead:
                world.kill(client)  # It was resumed in this instant, and died.
            world.revive(client)

        return end

    episodes(world, rng, knobs, begin)


def stopped_in_step(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Suspend a process in the middle of a transaction, while it holds the gate."""

    def begin() -> Callable[[], None]:
        client = some_client(world, rng)
        if client.host.dead or client.host.paused:
            return lambda: None
        process = world.machine.process_of(client.host)
        process.stop_at = rng.randrange(knobs["writes"])

        def end() -> None:
            process.stop_at = None
            if process.stopped is not None:
                process.resume()
                world.resume(client)

        return end

    episodes(world, rng, knobs, begin)


def power_cut(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Cut the power: all processes end, and the disk keeps any subset of the unsynced writes."""

    def begin() -> Callable[[], None]:
        world.note_fault("power_cut", world.machine.host.name)
        for client in world.clients:
            if not client.host.dead:
                world.kill(client)
        world.machine.cut_power()

        def start() -> None:
            for client in world.clients:
                world.revive(client)

        return start

    episodes(world, rng, knobs, begin)


def disk_full(world: World, rng: random.Random, knobs: Knobs) -> None:
    """Let no file grow, as on a full disk."""

    def begin() -> Callable[[], None]:
        world.note_fault("disk_full", world.machine.host.name)
        world.machine.disk.full = True
        return lambda: setattr(world.machine.disk, "full", False)

    episodes(world, rng, knobs, begin)


_TABLE: Final = frozenset(("memory",))
_EMPTIED: Final = frozenset(("memory", "redis"))
_FORGETFUL: Final = _EMPTIED | {"postgresql"}
_POSTGRESQL: Final = frozenset(("postgresql",))
_ETCD: Final = frozenset(("etcd",))
_REDIS: Final = frozenset(("redis",))
_QUORUM: Final = frozenset(("quorum",))
_SQLITE: Final = frozenset(("sqlite",))
_SERVERS: Final = ALL - _SQLITE

FAULTS: dict[str, Fault] = {
    "delay": Fault(delay, {"times": 2, "ms": (100, 2000), "late_ms": 250}),
    "loss": Fault(loss, {"times": 2, "ms": (50, 600), "share": 0.2}),
    "double": Fault(double, {"times": 2, "ms": (100, 1000), "share": 0.3}, stores=_TABLE | _QUORUM),
    "reset": Fault(reset, {"times": 2, "ms": (50, 600), "share": 0.3}, stores=_SERVERS),
    "partition": Fault(partition, {"times": 3, "ms": (50, 2200)}, stores=_SERVERS),
    "one_way": Fault(one_way, {"times": 2, "ms": (50, 1800)}, stores=_SERVERS),
    "pause": Fault(pause, {"times": 3, "ms": (20, 2200)}),
    "crash": Fault(crash, {"times": 2, "ms": (10, 1200), "together": 0.0}),
    "store_crash": Fault(store_crash, {"times": 2, "ms": (10, 1200)}, stores=_SERVERS),
    "amnesia": Fault(amnesia, {"times": 1, "ms": (10, 300)}, True, _EMPTIED),
    "power_loss": Fault(
        power_loss, {"times": 1, "ms": (10, 300), "sync_ms": 100}, True, _FORGETFUL
    ),
    "failover": Fault(failover, {"times": 1, "ms": (10, 400), "lag_ms": 60}, True, _FORGETFUL),
    "slow": Fault(slow, {"times": 2, "ms": (50, 600), "each_ms": 8}),
    "out_of_memory": Fault(out_of_memory, {"times": 2, "ms": (20, 900)}, stores=_REDIS),
    "backend_killed": Fault(backend_killed, {"times": 40}, stores=_POSTGRESQL),
    "leader_change": Fault(leader_change, {"times": 2, "ms": (50, 900)}, stores=_ETCD),
    "member_crash": Fault(member_crash, {"times": 2, "ms": (50, 2200)}, stores=_ETCD),
    "member_cut_off": Fault(member_cut_off, {"times": 2, "ms": (50, 2200)}, stores=_ETCD),
    "member_lag": Fault(member_lag, {"times": 2, "ms": (100, 900), "late_ms": 300}, stores=_ETCD),
    "compaction": Fault(compaction, {"times": 12}, stores=_ETCD),
    "no_space": Fault(no_space, {"times": 2, "ms": (20, 900)}, stores=_ETCD),
    "drift": Fault(drift, {"ppm": 12_000}, stores=_SERVERS),
    # If most nodes have wrong clocks, no majority accepts a ballot.
    "wall_jump": Fault(wall_jump, {"times": 3, "by_s": 30}, stores=ALL - _QUORUM),
    "node_crash": Fault(
        node_crash, {"times": 4, "ms": (2, 500), "forgetting": 0.5}, stores=_QUORUM
    ),
    "node_pause": Fault(node_pause, {"times": 3, "ms": (2, 800)}, stores=_QUORUM),
    "node_clocks": Fault(node_clocks, {"times": 1, "ms": (10, 900), "by_s": 3600}, stores=_QUORUM),
    "killed_in_step": Fault(
        killed_in_step, {"times": 3, "ms": (10, 900), "writes": 12}, stores=_SQLITE
    ),
    "stopped_in_step": Fault(
        stopped_in_step, {"times": 3, "ms": (20, 1800), "writes": 12}, stores=_SQLITE
    ),
    "power_cut": Fault(power_cut, {"times": 2, "ms": (10, 300)}, stores=_SQLITE),
    "disk_full": Fault(disk_full, {"times": 2, "ms": (20, 600)}, stores=_SQLITE),
    "client_clock": Fault(client_clock, {"times": 3, "by_s": 30}, stores=_QUORUM),
}
