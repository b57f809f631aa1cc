"""The majority store in the simulator: its shipped code against five simulated nodes.

The client's side (flow, wire, records) and the rules of a node are the code that ships; only the
network between them, the clocks and the crashes are simulated. A node keeps time by its wall
clock, as Redis does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from lockfast.core.commands import WAKE_FREE, Blocker, Command, Wake
from lockfast.core.modes import ELECTION, LOCK, ONCE
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Deliver, Store, WakeListener
from lockfast.sim.network import Network
from lockfast.sim.runtime import EPOCH_US, MS, Crashed, Host
from lockfast.sim.services import ObservedStore, OnReply, Step
from lockfast.stores.quorum import QuorumStore
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late, Patience
from lockfast.stores.quorum.messages import Answer, FreeWake, Locks, NoAnswer, ReadLocks, Request
from lockfast.stores.quorum.node import Node
from lockfast.stores.quorum.session_records import SessionRecords

if TYPE_CHECKING:
    from lockfast.sim.world import World

NODES: Final = 5
SKEW_MS: Final = 100
WRONG_US: Final = 1_000_000
"""A node whose clock is further off than this has its leases for as much longer."""


class SimNode:
    """One node on a host of its own."""

    def __init__(self, service: QuorumService, name: str) -> None:
        self._service = service
        self._world = service.world
        self.host = self._world.host(name)
        self.down = False
        self.slow_us = 0
        """How long each request takes, one after the other."""
        self.rules = Node(SKEW_MS * MS)
        self._free_at = 0

    def receive(self, call: _Call) -> None:
        """A request has arrived."""
        if not self.slow_us:
            self._serve(call)
            return
        kernel = self._world.kernel
        self._free_at = max(self._free_at, kernel.now) + self.slow_us
        kernel.at(self._free_at, partial(self._serve, call))

    def _serve(self, call: _Call) -> None:
        network = self._world.network
        if self.down:
            refused = NoAnswer(StoreUnavailableError(self.host.name, "connection refused"))
            network.carry(self.host, call.host, partial(call.arrive, refused))
            return
        wall_us = self.host.clock.wall_us()
        answer, wakes = self.rules.apply(call.request, wall_us // MS, wall_us)
        self._service.steps.append((self._world.kernel.now, call.request, answer))
        for wake in wakes:
            self._wake(wake)
        if network.reset and network.chance(network.reset):
            broken = NoAnswer(StoreUnavailableError(self.host.name, "the connection broke"), True)
            network.carry(self.host, call.host, partial(call.arrive, broken))
            return
        arrive = partial(call.arrive, answer)
        network.carry(self.host, call.host, arrive, arrive)

    def _wake(self, wake: FreeWake) -> None:
        listener = self._service.wake_listeners.get(wake.inbox)
        if listener is not None:
            hear = partial(listener.hear, wake)
            self._world.network.carry(self.host, listener.host, hear, hear)

    def restart(self, *, forgets: bool) -> None:
        """Be there again, with all it knew or with nothing."""
        self.down = False
        wall_us = self.host.clock.wall_us()
        silence_ms = self._world.ttl_ms + self._world.ttl_ms // 20
        self.rules.restart(wall_us // MS, wall_us, silence_ms, empty=forgets)
        self._world.history.note(self._world.kernel.now, resumed=self.host.name)


class _Call:
    """One request to one node, and where its answer goes."""

    def __init__(self, host: Host, request: Request, tell: Callable[[Answer | NoAnswer], None]):
        self.host = host
        self.request = request
        self._tell = tell

    def arrive(self, answer: Answer | NoAnswer) -> None:
        self._tell(answer)


class SimFlights:
    """Flights over the simulated network."""

    def __init__(self, host: Host, network: Network, nodes: Sequence[SimNode]) -> None:
        self._host = host
        self._network = network
        self._nodes = nodes

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        host = self._host
        if host.dead:
            raise Crashed(host.name)
        answers: list[Answer | NoAnswer | None] = [None] * len(requests)
        news = host.signal()
        is_over = False

        def tell(node: int, answer: Answer | NoAnswer) -> None:
            if is_over:
                if not isinstance(answer, NoAnswer):
                    late(node, answer)
            elif answers[node] is None:
                answers[node] = answer
                news.set()

        self._send(requests, tell)
        patience = Patience(host.now_ms(), timeout_ms)
        try:
            while left_ms := patience.left_ms(judge(answers), host.now_ms()):
                await news.wait(left_ms)
                news.clear()
        finally:
            is_over = True
        return answers

    def post(self, requests: Sequence[Request | None]) -> None:
        self._send(requests, lambda node, answer: None)

    def _send(
        self,
        requests: Sequence[Request | None],
        tell: Callable[[int, Answer | NoAnswer], None],
    ) -> None:
        host, network = self._host, self._network
        for index, (node, request) in enumerate(zip(self._nodes, requests, strict=True)):
            if request is None:
                continue
            call = _Call(host, request, partial(tell, index))
            receive = partial(node.receive, call)
            if not network.carry(host, node.host, receive, receive) and network.chance(0.5):
                lost = NoAnswer(StoreUnavailableError(node.host.name, "the connection broke"))
                network.kernel.arrive(MS, host, partial(call.arrive, lost))

    def close(self) -> None:
        """There is no connection."""


class SimWakeListener:
    """Wakes arrive as messages of their own: late, twice, or not at all."""

    process = ""

    def __init__(self, service: QuorumService, host: Host, session: str, deliver: Deliver) -> None:
        self.host = host
        self.inbox = session
        self._service = service
        self._deliver = deliver
        self._signal = host.signal()
        service.wake_listeners[session] = self

    def hear(self, wake: FreeWake) -> None:
        self._deliver(Wake(wake.inbox, wake.session, wake.n, WAKE_FREE))

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        await self._signal.wait(timeout_ms)
        self._signal.clear()
        return ()

    def interrupt(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """No machine sees another's processes."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._service.wake_listeners.pop(self.inbox, None)


class SimBackend:
    """A simulated client's way to all nodes."""

    def __init__(self, service: QuorumService, host: Host) -> None:
        self._service = service
        self._host = host

    @property
    def nodes(self) -> int:
        return NODES

    def caller_flights(self) -> Flights:
        return SimFlights(self._host, self._service.world.network, self._service.nodes)

    def keeper_flights(self) -> Flights:
        return SimFlights(self._host, self._service.world.network, self._service.nodes)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return SimWakeListener(self._service, self._host, session, deliver)

    def close(self) -> None:
        """There is no connection."""


class QuorumService:
    """Five nodes, and clients with the store that ships."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.steps: list[Step] = []
        self.wake_listeners: dict[str, SimWakeListener] = {}
        self.nodes = [SimNode(self, f"n{number}") for number in range(1, NODES + 1)]
        self.hosts = [node.host for node in self.nodes]

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        records = SessionRecords(NODES, host.mutex(), host.clock.wall_us)
        store = QuorumStore("quorum+sim://", SimBackend(self, host), host, host, records)
        return ObservedStore(store, on_send, on_reply)

    def crash(self) -> None:
        for node in self.nodes:
            node.down = True

    def start(self) -> None:
        for node in self.nodes:
            if node.down:
                node.restart(forgets=False)

    def slow_down(self, each_us: int) -> None:
        """One node is slow; the majority must not notice."""
        self.nodes[0].slow_us = each_us

    def heal(self) -> None:
        self.start()
        self.slow_down(0)

    def session_ends_us(self, session: str) -> int | None:
        return None

    def left_behind(self) -> Iterator[str]:
        for node in self.nodes:
            wall_us = node.host.clock.wall_us()
            for kind in (LOCK, ELECTION, ONCE):
                request = ReadLocks(kind, "", limit=3)
                answer, _ = node.rules.apply(request, wall_us // MS, wall_us)
                assert isinstance(answer, Locks)
                for lock in answer.locks:
                    if abs(wall_us - EPOCH_US - self.world.kernel.now) < WRONG_US:
                        yield f"{node.host.name}: {lock}"

    def disband(self) -> None:
        self.wake_listeners.clear()
        self.nodes.clear()
