"""The store's side of a world: servers on their own hosts, and the stores that clients use.

A service is what a world needs from a store. `TableService` runs the lock table itself behind the
network; the others run the shipped code of a store over a model of its server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from lockfast.core.commands import HOLDING, Command, Reply
from lockfast.core.rows import session_key
from lockfast.ports import Deliver, Store, WakeListener, Wire
from lockfast.sim.lockserver import LockServer, SimStore
from lockfast.sim.runtime import MS, Host

if TYPE_CHECKING:
    from lockfast.sim.sqlite.service import Machine
    from lockfast.sim.world import World

OnReply: TypeAlias = Callable[[Command, Reply], None]
Step: TypeAlias = tuple[int, Any, Any]
"""What a server did: true time, request, reply."""


class Service(Protocol):
    """The servers of a world."""

    steps: list[Step]

    @property
    def hosts(self) -> Sequence[Host]:
        """Their hosts; the one that keeps the time is first."""
        ...

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        """Return the store of a client on a host."""
        ...

    def crash(self) -> None:
        """Answer nothing until `start`; no state is lost."""
        ...

    def start(self) -> None: ...

    def slow_down(self, each_us: int) -> None:
        """Take this long for each request from now on, one after another."""
        ...

    def heal(self) -> None:
        """Undo all faults."""
        ...

    def session_ends_us(self, session: str) -> int | None:
        """Return the true time at which the store ends a session; None if unknown."""
        ...

    def disband(self) -> None: ...


@runtime_checkable
class Forgetful(Protocol):
    """A service that can lose acknowledged writes."""

    def forget_all(self) -> None:
        """Restart empty, like a store that keeps its state in memory only."""
        ...

    def sync(self) -> None:
        """Persist everything, or replicate it."""
        ...

    def forget_unsynced(self) -> None:
        """Restart from what was last persisted."""
        ...

    def fail_over(self) -> None:
        """Promote the replica, with the writes that it has received."""
        ...


@runtime_checkable
class Embedded(Protocol):
    """A service whose store runs inside its clients' processes, on one machine."""

    machine: Machine

    def client_died(self, host: Host) -> None:
        """Handle the death of a client, and of the store's state in its process."""
        ...


class Server(Protocol):
    """A simulated server that can crash, be slow, lose state, or be replaced by its replica."""

    host: Host
    slow_us: int

    def crash(self) -> None: ...
    def start(self) -> None: ...
    def sync(self) -> None: ...
    def forget_all(self) -> None: ...
    def forget_unsynced(self) -> object: ...
    def promote(self, host: Host) -> Self: ...


ServerT = TypeVar("ServerT", bound=Server)


class ServerService(Generic[ServerT]):
    """One server, optionally with a replica that lags behind."""

    def __init__(self, world: World, server: ServerT) -> None:
        self._world = world
        self.server = server
        self._replica = world.host("replica") if "failover" in world.mix.faults else None
        self.hosts = [server.host]
        self.steps: list[Step] = []

    def crash(self) -> None:
        self.server.crash()

    def start(self) -> None:
        self.server.start()

    def slow_down(self, each_us: int) -> None:
        self.server.slow_us = each_us

    def heal(self) -> None:
        self.server.start()
        self.server.slow_us = 0

    def forget_all(self) -> None:
        self.server.forget_all()

    def sync(self) -> None:
        self.server.sync()

    def forget_unsynced(self) -> None:
        self.server.forget_unsynced()

    def fail_over(self) -> None:
        """Promote the replica, with the writes that it has received."""
        if self._replica is None or self.server.host is self._replica:
            return
        self.server = self.server.promote(self._replica)
        self.hosts = [self.server.host]


class TableService(ServerService[LockServer]):
    """The shipped lock table behind the network: the store of the memory worlds."""

    def __init__(self, world: World) -> None:
        lagging = world.forgets
        super().__init__(world, LockServer(world.host("store"), world.network, lagging=lagging))
        self.server.observers.append(self._observe)

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        return SimStore(host, self._world.network, lambda: self.server, on_reply)

    def session_ends_us(self, session: str) -> int | None:
        row = self.server.table.rows.get(session_key(session))
        if row is None or row.ended:
            return None
        return self.server.host.clock.tick_when(row.deadline_ms * MS)

    def held(self) -> list[int]:
        """The tokens of all holders, according to the store."""
        claims = (row for _, row in self.server.table.rows.scan("c\x1f", "c\x20", 1000))
        return [claim.token for claim in claims if claim.state == HOLDING]

    def disband(self) -> None:
        self.server.disband()

    def _observe(self, command: Command, reply: Reply, now_ms: int, wall_us: int) -> None:
        self.steps.append((self._world.kernel.now, command, reply))
        self._world.observe(command, reply)


class ObservedStore:
    """A store that reports each command and reply to its client's recorder."""

    def __init__(self, inner: Store, on_send: Callable[[Command], None], on_reply: OnReply) -> None:
        self._inner = inner
        self._on_send = on_send
        self._on_reply = on_reply
        self.label = inner.label
        self.capabilities = inner.capabilities

    def caller_wire(self) -> Wire:
        return _ObservedWire(self._inner.caller_wire(), self._on_send, self._on_reply)

    def keeper_wire(self) -> Wire:
        return _ObservedWire(self._inner.keeper_wire(), self._on_send, self._on_reply)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return self._inner.wake_listener(session, deliver)

    def close(self) -> None:
        self._inner.close()


class _ObservedWire:
    def __init__(self, inner: Wire, on_send: Callable[[Command], None], on_reply: OnReply) -> None:
        self._inner = inner
        self._on_send = on_send
        self._on_reply = on_reply

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        self._on_send(command)
        reply = await self._inner.send(command, timeout_ms)
        self._on_reply(command, reply)
        return reply

    def close(self) -> None:
        self._inner.close()
