"""A modelled ensemble behind the simulated network, and the store's port to it.

What kazoo promises is what a link does here: requests of one session are carried out in the order
in which they were submitted; when a connection breaks, requests without an answer have an unknown
outcome, all watches are gone and the client connects anew, to any member, with the same session; a
session that is over is found out by that.

The state is that of a majority. A member tells the leader late which sessions it has heard from,
so the leader may count a session's timeout from up to a quarter of it earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.sim.network import Network
from lockfast.sim.runtime import MS, Host, SimSignal
from lockfast.sim.zookeeper.state import State
from lockfast.stores.zookeeper import transport as t
from lockfast.stores.zookeeper.transport import (
    Answer,
    Flight,
    LinkLostError,
    OnAnswer,
    OnEvent,
    Request,
)

LABEL: Final = "zookeeper://simulated"
BROKEN_US_MAX: Final = 60 * MS
"""A broken connection is noticed within this."""
BETWEEN_US_MAX: Final = 300
"""Requests of one flight are executed within this of each other."""
EPOCH_MS: Final = 1_700_000_000_000
CONNECT_AGAIN_US: Final = 80 * MS


@dataclass
class Member:
    host: Host
    down: bool = False


@dataclass
class Session:
    timeout_us: int
    heard_us: int
    link: SimLink
    connection: int


class Ensemble:
    """What all members agree on, and which connection each session has."""

    def __init__(
        self, hosts: Sequence[Host], network: Network, observe: Callable[[object, object], None]
    ) -> None:
        self.network = network
        self.kernel = network.kernel
        self.members = [Member(host) for host in hosts]
        self.slow_us = 0
        self.state = State(self._fired)
        self.sessions: dict[int, Session] = {}
        self._observe = observe
        self._opened = 0

    @property
    def is_down(self) -> bool:
        return all(member.down for member in self.members)

    def crash(self) -> None:
        for member in self.members:
            member.down = True

    def start(self) -> None:
        """A new leader counts the timeout of every session anew."""
        if self.is_down:
            self.state.elect()
            for session in self.sessions.values():
                session.heard_us = self.kernel.now
        for member in self.members:
            member.down = False

    def open(self, link: SimLink, connection: int, timeout_ms: int) -> int:
        self._opened += 1
        self.state.open(self._opened)
        self.sessions[self._opened] = Session(timeout_ms * MS, self.kernel.now, link, connection)
        self._watch_over(self._opened)
        return self._opened

    def heard_from(self, number: int) -> None:
        session = self.sessions[number]
        late_us = int(self.network.draw() * (session.timeout_us // 4))
        session.heard_us = max(session.heard_us, self.kernel.now - late_us)

    def _watch_over(self, number: int) -> None:
        """End a session once nobody has heard from it for its timeout."""
        session = self.sessions.get(number)
        if session is None:
            return
        left_us = session.heard_us + session.timeout_us - self.kernel.now
        if left_us <= 0 and not self.is_down:
            self.end(number)
            return
        again = partial(self._watch_over, number)
        self.kernel.arrive(max(left_us, 5 * MS), self.members[0].host, again)

    def end(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        self.state.end(number)
        if session is not None:
            session.link.break_soon(session.connection)

    def apply(self, number: int, request: Request) -> Answer:
        # The leader's clock may be wrong, but is not set while it leads.
        now_ms = EPOCH_MS + self.kernel.now // MS
        answer = self.state.apply(number, request, now_ms)
        if self.network.chance(0.02):
            self.state.reap_containers()
        self._observe(request, answer)
        return answer

    def _fired(self, number: int, path: str) -> None:
        session = self.sessions.get(number)
        if session is not None:
            session.link.push(session.connection, path)


class SimFlight(SimSignal):
    """Requests under way."""

    __slots__ = ("answers", "error", "on_answer", "requests")

    def __init__(
        self, host: Host, requests: Sequence[Request], on_answer: OnAnswer | None = None
    ) -> None:
        super().__init__(host)
        self.requests = requests
        self.on_answer = on_answer
        self.answers: Sequence[Answer] = ()
        self.error: Exception | None = None

    def succeed(self, answers: Sequence[Answer]) -> None:
        if not self._is_set:
            self.answers = answers
            self.set()
            if self.on_answer is not None:
                self.on_answer(answers[0])

    def fail(self, error: Exception) -> None:
        if not self._is_set:
            self.error = error
            self.set()
            if self.on_answer is not None:
                self.on_answer(None)

    def unknown(self, what: str) -> Exception:
        if any(isinstance(one, t.Multi | t.Create | t.Delete | t.Set) for one in self.requests):
            return OutcomeUnknownError(LABEL, what)
        return StoreUnavailableError(LABEL, what)


class SimLink:
    """One ZooKeeper session of a client."""

    def __init__(
        self,
        host: Host,
        ensemble: Ensemble,
        timeout_ms: int,
        on_event: OnEvent,
        on_lost: Callable[[], None],
    ) -> None:
        self.timeout_ms = 0
        self._host = host
        self._ensemble = ensemble
        self._network = ensemble.network
        self._kernel = ensemble.kernel
        self._asked_ms = timeout_ms
        self._on_event = on_event
        self._on_lost = on_lost
        self._session = 0
        self._connection = 0
        self._is_connected = False
        self._is_lost = False
        self._member = ensemble.members[0]
        self._opening: list[SimFlight] = []
        self._queued: list[SimFlight] = []
        self._pending: list[SimFlight] = []
        self._up_us = self._down_us = 0
        """No message arrives before these: a connection keeps the order."""

    # ── the client's side ────────────────────────────────────────────────────────────

    def open(self) -> SimFlight:
        flight = SimFlight(self._host, ())
        if self.timeout_ms:
            flight.succeed(())
        else:
            self._opening.append(flight)
        if not self._connection:
            self._connect()
        return flight

    def _connect(self) -> None:
        if self._is_lost or self._host.dead:
            return
        self._connection += 1
        members = self._ensemble.members
        self._member = members[int(self._network.draw() * len(members))]
        connecting = partial(self._accept, self._connection, self._member)
        self._network.carry(self._host, self._member.host, connecting)
        again = partial(self._again, self._connection)
        self._kernel.arrive(CONNECT_AGAIN_US, self._host, again)

    def _again(self, connection: int) -> None:
        if connection == self._connection and not self._is_connected:
            self._connect()

    def _connected(self, connection: int, session: int) -> None:
        if connection != self._connection or self._is_lost:
            return
        if not session:
            self._lose()
            return
        self._session, self._is_connected = session, True
        self.timeout_ms = self._asked_ms
        opening, self._opening = self._opening, []
        for flight in opening:
            flight.succeed(())
        queued, self._queued = self._queued, []
        for flight in queued:
            self._send(flight)

    def _lose(self) -> None:
        self._is_lost, self._is_connected = True, False
        for flight in [*self._pending, *self._queued]:
            flight.fail(LinkLostError())
        self._pending, self._queued = [], []
        self._on_lost()

    def watch(self, path: str, on_answer: OnAnswer) -> None:
        self._start(SimFlight(self._host, [t.Get(path, True)], on_answer))

    def submit(self, requests: Sequence[Request]) -> SimFlight:
        return self._start(SimFlight(self._host, requests))

    def _start(self, flight: SimFlight) -> SimFlight:
        if self._is_lost:
            flight.fail(LinkLostError())
        elif self._is_connected:
            self._send(flight)
        else:
            self._queued.append(flight)
        return flight

    def _send(self, flight: SimFlight) -> None:
        self._pending.append(flight)
        if self._network.loses(self._host, self._member.host):
            self.break_soon(self._connection)
            return
        at_us = max(self._kernel.now + self._network.transit_us(), self._up_us + 1)
        found: list[Answer] = []
        for _ in flight.requests:
            receive = partial(self._receive, self._connection, self._member, flight, found)
            self._kernel.arrive(at_us - self._kernel.now, self._member.host, receive)
            self._up_us = at_us
            # Each request is executed separately, so others are executed in between.
            at_us += 1 + int(self._network.draw() * BETWEEN_US_MAX)

    def break_soon(self, connection: int) -> None:
        late_us = 1 + int(self._network.draw() * BROKEN_US_MAX)
        self._kernel.arrive(late_us, self._host, partial(self._broken, connection))

    def _broken(self, connection: int) -> None:
        if connection != self._connection or not self._is_connected:
            return
        self._is_connected = False
        for flight in self._pending:
            flight.fail(flight.unknown("the connection broke"))
        self._pending = []
        self._on_event("")
        self._connect()

    def _take(self, connection: int, flight: SimFlight, answers: Sequence[Answer]) -> None:
        if connection == self._connection and self._is_connected:
            if flight in self._pending:
                self._pending.remove(flight)
            flight.succeed(answers)

    def _hear(self, connection: int, path: str) -> None:
        if connection == self._connection and self._is_connected:
            self._on_event(path)

    def is_lost(self) -> bool:
        return self._is_lost

    def close(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            session = self._session
            ending = partial(self._ensemble.end, session)
            self._network.carry(self._host, self._member.host, ending)
            for flight in [*self._pending, *self._queued]:
                flight.fail(LinkLostError())

    # ── the member's side ────────────────────────────────────────────────────────────

    def _accept(self, connection: int, member: Member) -> None:
        if member.down or connection != self._connection:
            return
        ensemble, session = self._ensemble, self._session
        if not session:
            session = ensemble.open(self, connection, self._asked_ms)
        elif session in ensemble.sessions:
            # From here on, whatever still arrives from the old connection is refused.
            ensemble.sessions[session].connection = connection
            ensemble.state.forget_watches(session)
            ensemble.heard_from(session)
        else:
            session = 0
        told = partial(self._connected, connection, session)
        self._network.carry(member.host, self._host, told)

    def _receive(
        self, connection: int, member: Member, flight: SimFlight, found: list[Answer]
    ) -> None:
        ensemble, session = self._ensemble, self._session
        known = ensemble.sessions.get(session)
        if member.down or known is None or known.connection != connection:
            self.break_soon(connection)
            return
        ensemble.heard_from(session)
        found.append(ensemble.apply(session, flight.requests[len(found)]))
        if len(found) == len(flight.requests):
            self._answer(connection, partial(self._take, connection, flight, found))

    def push(self, connection: int, path: str) -> None:
        self._answer(connection, partial(self._hear, connection, path))

    def _answer(self, connection: int, deliver: Callable[[], None]) -> None:
        network, member = self._network, self._member
        if network.chance(network.reset) or network.loses(member.host, self._host):
            self.break_soon(connection)
            # Whatever comes after what was lost does not arrive either.
            known = self._ensemble.sessions.get(self._session)
            if known is not None and known.connection == connection:
                known.connection = -1
            return
        at_us = self._kernel.now + network.transit_us() + self._ensemble.slow_us
        self._down_us = at_us = max(at_us, self._down_us + 1)
        self._kernel.arrive(at_us - self._kernel.now, self._host, deliver)


class SimZooKeeperNetwork:
    """Everything outside of one client's store: the ensemble, this host's clocks and chance."""

    def __init__(self, host: Host, ensemble: Ensemble) -> None:
        self._host = host
        self._ensemble = ensemble
        self.caller = self.keeper = self  # both wait alike

    def link(
        self, timeout_ms: int, on_event: OnEvent, on_lost: Callable[[], None], *, pings: bool
    ) -> SimLink:
        # Nobody pings here: the common link loses its session when it is idle, and is replaced.
        return SimLink(self._host, self._ensemble, timeout_ms, on_event, on_lost)

    async def wait(self, flight: Flight, timeout_ms: int) -> Sequence[Answer]:
        assert isinstance(flight, SimFlight)
        await flight.wait(timeout_ms)
        if flight.error is not None:
            raise flight.error
        if not flight.is_set():
            raise flight.unknown("did not answer in time")
        return flight.answers

    def signal(self) -> SimSignal:
        return self._host.signal()

    def now_ms(self) -> int:
        return self._host.now_ms()

    def wall_us(self) -> int:
        return self._host.clock.wall_us()

    def random_bits(self, bits: int) -> int:
        return self._host.chance().getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return self._host.mutex()
