"""Nodes over the network, for the blocking API: each set of connections carries one flight."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from lockfast.core.commands import WAKE_FREE, Blocker, Wake
from lockfast.ports import Deliver, WakeListener
from lockfast.runtimes import platform
from lockfast.runtimes.platform import now_ms
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late, Patience
from lockfast.stores.quorum.links import Link, State, Tell
from lockfast.stores.quorum.messages import Answer, Give, NoAnswer, Request
from lockfast.stores.waker import Waker

IDLE_MAX: Final = 32
"""How many idle sets of connections are kept open."""
LISTEN_AGAIN_S: Final = 1.0
"""How often a listener retries connections that have failed."""

_inherited: Final[list[Fleet]] = []
"""Connections inherited from a parent process: neither used nor closed here."""


class Nodes(Protocol):
    """The nodes of one store: how to connect to them, and the encoding of requests."""

    def __len__(self) -> int: ...
    def links(self) -> list[Link]:
        """Return a new link to each node."""
        ...

    def pack_all(self, requests: Sequence[Request | None]) -> list[bytes | None]:
        """Return the encoded request to each node; the same request is encoded once."""
        ...

    def answer_to(self, request: Request, reply: Any) -> Answer | NoAnswer:
        """Decode what a link has received."""
        ...

    def inbox_of(self, session: str) -> str: ...
    def wake_links(self, session: str, on_push: Tell) -> list[Link]:
        """Return links that receive the wakes of a session."""
        ...

    def woken_claim(self, session: str, message: Any) -> int | None:
        """Return the number of the claim that a received message wakes; None if it wakes none."""
        ...


class Flight:
    """Collects the answers to one flight."""

    def __init__(
        self,
        nodes: Nodes,
        requests: Sequence[Request | None],
        late: Late,
        news: Callable[[], None],
    ) -> None:
        self.answers: list[Answer | NoAnswer | None] = [None] * len(requests)
        self.is_over = False
        self._nodes = nodes
        self._requests = requests
        self._late = late
        self._news = news

    def tell(self, node: int, reply: Any) -> None:
        request = self._requests[node]
        assert request is not None
        answer = reply if isinstance(reply, NoAnswer) else self._nodes.answer_to(request, reply)
        if not self.is_over:
            self.answers[node] = answer
            self._news()
        elif not isinstance(answer, NoAnswer):
            self._late(node, answer)

    def depart(self, links: Sequence[Link]) -> None:
        packed = self._nodes.pack_all(self._requests)
        for node, (link, each) in enumerate(zip(links, packed, strict=True)):
            if each is not None:
                # A release is sent even if a majority has answered: a node that is behind must
                # not keep the lease.
                is_release = isinstance(self._requests[node], Give)
                link.request(each, partial(self.tell, node), None if is_release else self)

    def end(self, links: Sequence[Link]) -> None:
        for link in links:
            link.withdraw(self)
        self.is_over = True


def nobody_waits() -> None:
    """Do nothing: no caller waits for the answers."""


def no_late(node: int, answer: Answer) -> None:
    """Discard the answer."""


class Fleet:
    """One connection to each node, used by one thread at a time."""

    def __init__(self, nodes: Nodes) -> None:
        self.links = nodes.links()
        self._nodes = nodes
        self._poll = platform.poll()
        self._watched: list[tuple[socket.socket | None, bool]] = []
        self._by_fd: dict[int, Link] = {}

    def fly(
        self,
        requests: Sequence[Request | None],
        judge: Judge,
        timeout_ms: int,
        late: Late,
    ) -> Answers:
        flight = Flight(self._nodes, requests, late, nobody_waits)
        patience = Patience(now_ms(), timeout_ms)
        flight.depart(self.links)
        try:
            while left_ms := patience.left_ms(judge(flight.answers), now_ms()):
                self.poll(left_ms)
        finally:
            flight.end(self.links)
        return flight.answers

    def post(self, requests: Sequence[Request | None]) -> None:
        Flight(self._nodes, requests, no_late, nobody_waits).depart(self.links)
        self.poll(0)

    def poll(self, timeout_ms: float) -> None:
        """Wait until a node can be read or written, and do so."""
        self._register()
        for fd, _ in self._poll.poll(timeout_ms):
            found = self._by_fd.get(fd)
            if found is not None:
                found.step()

    def _register(self) -> None:
        watched = [(link.socket, link.wants_write) for link in self.links]
        if watched == self._watched:
            return
        for fd in self._by_fd:
            self._poll.unregister(fd)
        self._by_fd.clear()
        for link, (opened, writes) in zip(self.links, watched, strict=True):
            if opened is not None:
                self._poll.register(opened, platform.POLLIN | (platform.POLLOUT if writes else 0))
                self._by_fd[opened.fileno()] = link
        self._watched = watched

    def close(self) -> None:
        for link in self.links:
            link.close()


class BlockingFlights:
    """Flights of any number of threads; each uses a separate set of connections."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._idle: deque[Fleet] = deque()
        self._process = os.getpid()
        self._closed = False

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        fleet = self._take()
        try:
            answers = fleet.fly(requests, judge, timeout_ms, late)
        except BaseException:
            fleet.close()
            raise
        self._put(fleet)
        return answers

    def post(self, requests: Sequence[Request | None]) -> None:
        fleet = self._take()
        try:
            fleet.post(requests)
        except BaseException:
            fleet.close()
            raise
        self._put(fleet)

    def _take(self) -> Fleet:
        if self._process != os.getpid():
            _inherited.extend(self._idle)
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return Fleet(self._nodes)

    def _put(self, fleet: Fleet) -> None:
        if self._closed or len(self._idle) >= IDLE_MAX:
            fleet.close()
        else:
            self._idle.append(fleet)

    def close(self) -> None:
        self._closed = True
        if self._process == os.getpid():
            while self._idle:
                self._idle.pop().close()


class NetworkBackend:
    """Connects a blocking client to nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._flights: list[Flights] = []

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def caller_flights(self) -> Flights:
        return self._noted(BlockingFlights(self._nodes))

    def keeper_flights(self) -> Flights:
        return BlockingFlights(self._nodes)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return NetworkWakeListener(self._nodes, session, deliver)

    def close(self) -> None:
        for flights in self._flights:
            flights.close()

    def _noted(self, flights: Flights) -> Flights:
        self._flights.append(flights)
        return flights


class NetworkWakeListener:
    """Listens to every node; the first one that frees the lock wakes the contender."""

    process = ""

    def __init__(self, nodes: Nodes, session: str, deliver: Deliver) -> None:
        self.inbox = nodes.inbox_of(session)
        self._nodes = nodes
        self._session = session
        self._deliver = deliver
        self._process = os.getpid()
        self._links = nodes.wake_links(session, self._hear)
        self._waker = Waker()

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        until_s = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        while True:
            for link in self._links:
                link.refresh()
            poll = platform.poll()
            poll.register(self._waker.fileno(), platform.POLLIN)
            by_fd: dict[int, Link] = {}
            for link in self._links:
                if link.socket is not None:
                    events = platform.POLLIN | (platform.POLLOUT if link.wants_write else 0)
                    poll.register(link.socket, events)
                    by_fd[link.socket.fileno()] = link
            left_s = None if until_s is None else max(0.0, until_s - monotonic())
            if any(link.state is not State.READY for link in self._links):
                left_s = LISTEN_AGAIN_S if left_s is None else min(left_s, LISTEN_AGAIN_S)
            interrupted = False
            for fd, _ in poll.poll(None if left_s is None else left_s * 1000):
                if fd in by_fd:
                    by_fd[fd].step()
                else:
                    self._waker.take()
                    interrupted = True
            if interrupted or (until_s is not None and monotonic() >= until_s):
                return ()

    def _hear(self, message: Any) -> None:
        n = self._nodes.woken_claim(self._session, message)
        if n is not None:
            self._deliver(Wake(self.inbox, self._session, n, WAKE_FREE))

    def interrupt(self) -> None:
        self._waker.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Do nothing: processes of other clients cannot be watched."""

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        if self._process == os.getpid():
            for link in self._links:
                link.close()
            self._waker.close()
