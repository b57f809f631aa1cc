"""A world in virtual time: hosts, clients that run the shipped code, a store, and faults.

A mix and a seed determine a run completely: its history is the same, byte for byte, on any
machine.
"""

from __future__ import annotations

import hashlib
import json
import random
import traceback
from collections.abc import Callable, Coroutine, Iterator, Set
from dataclasses import dataclass, field
from importlib.util import find_spec
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lockfast.core.commands import (
    Command,
    Done,
    Listing,
    ListingReply,
    Renew,
    Reply,
    ResourceView,
    Revoke,
    RevokeSession,
)
from lockfast.core.modes import MODES_OF_KIND
from lockfast.errors import StoreError
from lockfast.sim.checker import Problem
from lockfast.sim.client import SimClient
from lockfast.sim.etcd.cluster import Cluster
from lockfast.sim.etcd.service import EtcdService
from lockfast.sim.faults import FAULTS
from lockfast.sim.history import Entry, History
from lockfast.sim.lockserver import LockServer
from lockfast.sim.mix import Mix, MixError
from lockfast.sim.network import Network
from lockfast.sim.quorum import QuorumService, SimNode
from lockfast.sim.register import Register
from lockfast.sim.runtime import (
    EMPTY_WAITS_MAX,
    MS,
    Crashed,
    Host,
    Kernel,
    LivelockError,
    Task,
)
from lockfast.sim.services import Embedded, Forgetful, Service, Step, TableService
from lockfast.sim.workloads import WORKLOADS
from lockfast.sim.zookeeper.service import ZooKeeperService

if TYPE_CHECKING:
    from lockfast.sim.postgresql.server import PostgresServer
    from lockfast.sim.redis.server import RedisServer
    from lockfast.sim.sqlite.service import Machine

PATIENCE_TTLS = 60
"""A client that has not ended after this many TTLs never will."""

_REVOKES = (Revoke, RevokeSession)


def _redis(world: World) -> Service:
    if find_spec("lupa") is None:
        raise MixError("worlds of Redis run its Lua scripts: install the package lupa")
    from lockfast.sim.redis.service import RedisService

    return RedisService(world)


def _sqlite(world: World) -> Service:
    if find_spec("apsw") is None:
        raise MixError("worlds of SQLite need a disk below it: install the package apsw")
    from lockfast.sim.sqlite.service import SqliteService

    return SqliteService(world)


def _postgresql(world: World) -> Service:
    if find_spec("psycopg") is None:
        raise MixError("worlds of PostgreSQL run its store: install the package psycopg")
    from lockfast.sim.postgresql.service import PostgresService

    return PostgresService(world)


_SERVICES: dict[str, Callable[[World], Service]] = {
    "memory": TableService,
    "etcd": EtcdService,
    "zookeeper": ZooKeeperService,
    "redis": _redis,
    "quorum": QuorumService,
    "sqlite": _sqlite,
    "postgresql": _postgresql,
}


@dataclass
class Run:
    """The outcome of a run."""

    mix: Mix
    seed: int
    entries: list[Entry]
    problems: list[Problem] = field(default_factory=list)
    operations: int = 0
    messages: int = 0
    ended_us: int = 0
    steps: list[Step] = field(default_factory=list)
    """The steps of the store."""

    @property
    def trace(self) -> Iterator[str]:
        """Return the steps of the store, one line each."""
        for at, request, reply in self.steps:
            if isinstance(request, tuple):
                yield (
                    f"{at} {type(request).__name__} {request[0]} {request[1:2]} "
                    f"{type(reply).__name__} {getattr(reply, 'token', '')}"
                )
            else:
                yield f"{at} {request} {json.dumps(reply)}"

    def trace_hash(self) -> str:
        """Return a digest of all steps of the store and all replies, in order."""
        digest = hashlib.sha256()
        for line in self.trace:
            digest.update(line.encode() + b"\n")
        for entry in self.entries:
            digest.update(json.dumps(entry).encode() + b"\n")
        return digest.hexdigest()


def steps_max(mix: Mix) -> int:
    """Return how many steps a world may take: several times as many as the longest so far."""
    return 1_000 * mix.operations + (5_000 + 5 * mix.chaos_ms) * mix.clients


class World:
    """All hosts, clients, servers and faults of one run."""

    def __init__(self, mix: Mix, seed: int) -> None:
        self.mix = mix
        self.seed = seed
        self.ttl_ms = mix.ttl_ms
        self.ageing_step_ms = mix.ageing_step_ms
        self.chaos_us = mix.chaos_ms * MS
        self.forgets = mix.forgets
        self.kernel = Kernel(seed)
        self.history = History()
        self.problems: list[Problem] = []
        self.hosts: dict[str, Host] = {}
        self.network = Network(self.kernel)
        self.service: Service = _SERVICES[mix.store](self)
        self.register = Register(
            self.host("resource"), self.network, self.history, fenced=mix.fenced
        )
        self.clients = [SimClient(self, f"c{i + 1}") for i in range(mix.clients)]
        self.director = Host(self.kernel, "director")
        """The host that drives a story; it is not part of the world."""
        self._undo: dict[int, Callable[[], None]] = {}
        self._undo_number = 0
        self.rounds_begun = 0
        """How many tasks of clients are in the middle of an operation."""
        self._at_work = 0
        self._healed = False
        self._noted_rows: object = None
        self._noted = 0

    def host(self, name: str) -> Host:
        # Monotonic clocks count from boot, so those of different hosts are unrelated.
        started_us = 1_000_000 * (1 + len(self.hosts) * 7)
        host = self.hosts[name] = Host(self.kernel, name, started_us=started_us)
        return host

    # ── from beginning to end ────────────────────────────────────────────────────────

    def run_story(self, story: Coroutine[Any, Any, None]) -> Run:
        """Run one coroutine in this world instead of the clients of the mix."""
        self.network.on_lost = self._note_lost
        self._noted_rows = self.server.table.rows
        self.server.observers.append(self._note_store)
        self._plan_faults()
        try:
            self.kernel.run_until_done(self.director.start(story, "story"), 60_000 * MS)
            self.heal()
        except Exception as error:
            self._failed(error)
        finally:
            for host in self.hosts.values():
                host.crash()
            self.director.crash()
        return self._result()

    def _plan_faults(self) -> None:
        for name in self.mix.faults:
            rng = random.Random(f"{self.seed} fault {name}")
            FAULTS[name].plan(self, rng, self.mix.knobs_of_fault(name))

    def run(self) -> Run:
        """Run the world, then check what is left in the store."""
        self._plan_faults()
        self._at_work = len(self.clients)
        for client in self.clients:
            self._set_to_work(client)
        self.kernel.at(self.chaos_us, self.heal)
        horizon = self.chaos_us + PATIENCE_TTLS * self.ttl_ms * MS
        self.kernel.steps_max = steps_max(self.mix)
        try:
            self.kernel.run(until=horizon)
            self.heal()
            if self._at_work:
                self.problem("liveness", f"{self._at_work} clients have not ended")
            self._close()
        except LivelockError as error:
            self.problem("liveness", str(error))
        except Exception as error:
            self._failed(error)
        finally:
            for host in self.hosts.values():
                host.crash()
        return self._result()

    def problem(self, check: str, text: str) -> None:
        """Record a broken promise that the history of clients does not show."""
        self.problems.append(Problem(check, text, at=self.kernel.now))

    def _failed(self, error: BaseException) -> None:
        where = "".join(traceback.format_exception(error)[-3:])
        self.problem("error", f"{type(error).__name__}: {error}\n{where}")

    def _result(self) -> Run:
        for task, at in self.kernel.busy.items():
            text = f"{task} waited {EMPTY_WAITS_MAX} times in a row for no time at all"
            self.problems.append(Problem("busy", text, at=at))
        entries = sorted(self.history.entries, key=itemgetter("at"))
        steps, self.service.steps = self.service.steps, []
        return Run(
            self.mix,
            self.seed,
            entries,
            self.problems,
            self.history.operations,
            self.network.messages,
            self.kernel.now,
            steps,
        )

    def disband(self) -> None:
        """Break reference cycles, so that little is left for the garbage collector."""
        for client in self.clients:
            client.disband()
        self.clients.clear()
        self.kernel.disband()
        self.service.disband()
        self._noted_rows = None

    def _set_to_work(self, client: SimClient) -> None:
        names = list(self.mix.workloads)
        name = names[self.clients.index(client) % len(names)]
        life = client.host.process()
        rng = random.Random(f"{self.seed} work of {client.name} {life}")
        work = WORKLOADS[name].work(client, rng, self.mix.knobs_of_workload(name))
        task = client.host.start(work, client.name)
        task.on_done(lambda: self._ended(task))

    def wants_more(self) -> bool:
        """Return True while clients should continue: there is time, and too little has happened."""
        return (
            self.history.operations + self.rounds_begun < self.mix.operations
            and self.kernel.now < self.chaos_us + self.ttl_ms * MS * PATIENCE_TTLS // 2
        )

    def _ended(self, task: Task[None]) -> None:
        error = task.error
        if isinstance(error, Crashed):
            return  # its client is restarted
        if error is not None:
            self._failed(error)
        self._at_work -= 1
        if not self._at_work:
            self.kernel.stop()

    def _close(self) -> None:
        """Let all clients leave; one TTL later the store must be empty."""
        closed = {
            session.id
            for client in self.clients
            for session in client.core.sessions()
            if session.alive()
        }
        closing = [client.host.start(client.core.close(), "close") for client in self.clients]
        self.kernel.run(until=self.kernel.now + 10_000 * MS)
        for task in closing:
            if not task.done or task.error is not None:
                self.problem("liveness", f"{task.host.name} could not close: {task.error!r}")
        self.kernel.run(until=self.kernel.now + 2 * self.ttl_ms * MS)
        looking = self.host("last").start(self._look_for_remains(closed), "last")
        try:
            self.kernel.run_until_done(looking, self.kernel.now + 60_000 * MS)
        except StoreError as error:
            self.problem("readable", f"at the end the store cannot be read: {error}")

    async def _look_for_remains(self, closed: Set[str]) -> None:
        """Check that the last client finds no name in use; `closed` sessions have left."""
        store = self.service.connect(
            self.hosts["last"], lambda command: None, lambda command, reply: None
        )
        wire = store.caller_wire()
        await wire.send(Renew("nobody"), 10_000)
        for kind in MODES_OF_KIND:
            listed = await wire.send(Listing(kind, limit=10), 10_000)
            assert isinstance(listed, ListingReply), listed
            for resource in listed.resources:
                if not self._outlasts_a_clock(resource, closed):
                    self.problem("left behind", str(resource))

    def _outlasts_a_clock(self, resource: ResourceView, closed: Set[str]) -> bool:
        """Return True for what a server whose clock was set back ends when it has caught up.

        These are the claims of sessions that their clients did not close, because they were
        killed or believed the session lost. A live waiter would expel them by its own clock;
        here no client is left.
        """
        claims = (*resource.holders, *resource.waiting)
        return self.mix.moves_deadlines and not any(claim.session in closed for claim in claims)

    # ── for faults ───────────────────────────────────────────────────────────────────

    def later(self, us: int, callback: Callable[[], None], *, undo: bool = False) -> None:
        """Call back after a time; one that undoes a fault runs at the healing at the latest."""
        if not undo:
            self.kernel.after(us, lambda: None if self._healed else callback())
            return
        self._undo_number += 1
        number = self._undo_number
        self._undo[number] = callback

        def end() -> None:
            self._undo.pop(number, lambda: None)()

        self.kernel.after(us, end)

    def heal(self) -> None:
        """Heal: from here on there are no faults."""
        if self._healed:
            return
        self._healed = True
        pending, self._undo = self._undo, {}
        for undo in pending.values():
            undo()
        self.network.heal()
        self.service.heal()
        self.history.note(self.kernel.now, heal=True)

    def note_fault(self, what: str, on: str, **about: object) -> None:
        self.history.note(self.kernel.now, fault=what, on=on, **about)

    def resume(self, client: SimClient) -> None:
        if client.host.paused:
            self.history.note(self.kernel.now, resumed=client.name)
            client.host.resume()

    def kill(self, client: SimClient) -> None:
        client.die()
        if isinstance(self.service, Embedded):
            self.service.client_died(client.host)

    def revive(self, client: SimClient) -> None:
        if client.host.dead:
            client.host.restart()
            client.connect()
            self._set_to_work(client)

    @property
    def forgetful(self) -> Forgetful:
        """Return the service whose store may lose acknowledged writes."""
        assert isinstance(self.service, Forgetful), f"this is a world of {self.mix.store}"
        return self.service

    @property
    def nodes(self) -> list[SimNode]:
        """Return the nodes of a world with a quorum store."""
        assert isinstance(self.service, QuorumService), f"this is a world of {self.mix.store}"
        return self.service.nodes

    @property
    def table_service(self) -> TableService:
        """Return the service of a world with the plain lock table."""
        assert isinstance(self.service, TableService), f"this is a world of {self.mix.store}"
        return self.service

    @property
    def machine(self) -> Machine:
        """The machine of a world of SQLite."""
        assert isinstance(self.service, Embedded), f"this is a world of {self.mix.store}"
        return self.service.machine

    @property
    def redis(self) -> RedisServer:
        """The server of a world of Redis."""
        assert self.mix.store == "redis", f"this is a world of {self.mix.store}"
        server: RedisServer = self.service.server  # type: ignore[attr-defined]
        return server

    @property
    def postgresql(self) -> PostgresServer:
        """The server of a world of PostgreSQL."""
        assert self.mix.store == "postgresql", f"this is a world of {self.mix.store}"
        server: PostgresServer = self.service.server  # type: ignore[attr-defined]
        return server

    @property
    def cluster(self) -> Cluster:
        """Return the servers of a world with etcd."""
        assert isinstance(self.service, EtcdService), f"this is a world of {self.mix.store}"
        return self.service.cluster

    @property
    def server(self) -> LockServer:
        """Return the lock server."""
        return self.table_service.server

    def fail_over(self) -> None:
        """Promote the replica, with the writes that it has received."""
        self.forgetful.fail_over()
        self.history.note(self.kernel.now, resumed="store")

    def _note_lost(self, source: Host, target: Host) -> None:
        self.history.note(self.kernel.now, lost_message=source.name, to=target.name)

    def _note_store(self, command: Command, reply: Reply, now_ms: int, wall_us: int) -> None:
        """Record the holders according to the store, for the timeline."""
        rows = self.server.table.rows
        if rows is not self._noted_rows:
            self._noted_rows, self._noted = rows, 0
            self.history.note(self.kernel.now, store="begins", holds=self.table_service.held())
        for event in rows.events(self._noted, 100):
            self._noted = event.position
            if event.token and event.what in ("granted", "released", "expired", "revoked"):
                about = {"token": event.token, "by": event.owner}
                self.history.note(self.kernel.now, store=event.what, **about)

    # ── observing ────────────────────────────────────────────────────────────────────

    def observe(self, command: Command, reply: Reply) -> None:
        """Record what an executed command revoked from a client."""
        if not isinstance(command, _REVOKES):
            return
        if isinstance(reply, Done) and reply.found:
            self.note_revoke(command)

    def note_revoke(self, command: Revoke | RevokeSession) -> None:
        """Record that claims are revoked from now on."""
        n = command.n if isinstance(command, Revoke) else 0
        self.history.note(self.kernel.now, revoke=command.session, n=n)
