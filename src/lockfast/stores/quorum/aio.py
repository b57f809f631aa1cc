"""Nodes over the network, for asyncio: one connection to each, shared by all tasks of a loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import NamedTuple

from lockfast.runtimes.platform import now_ms
from lockfast.stores.quorum.fleet import Flight, NetworkBackend, Nodes, no_late, nobody_waits
from lockfast.stores.quorum.flights import Answers, Flights, Judge, Late, Patience
from lockfast.stores.quorum.links import Link
from lockfast.stores.quorum.messages import Request


class AsyncNetworkBackend(NetworkBackend):
    """A NetworkBackend for asyncio: callers await their flights."""

    def caller_flights(self) -> Flights:
        return self._noted(AsyncFlights(self._nodes))


class _Watched(NamedTuple):
    opened: socket.socket
    fd: int
    writes: bool


class _LoopFleet:
    """One connection to each node, driven by an event loop."""

    def __init__(self, nodes: Nodes, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.links = nodes.links()
        self._watched: dict[Link, _Watched] = {}

    def watch(self) -> None:
        """Register each link with the loop for the events that it waits for."""
        # First remove closed sockets: another link may have reused their descriptors.
        for link, watched in list(self._watched.items()):
            if watched.opened is not link.socket:
                self._forget(link, watched.fd)
        for link in self.links:
            opened = link.socket
            if opened is None:
                continue
            before = self._watched.get(link)
            wanted = _Watched(opened, opened.fileno(), link.wants_write)
            if wanted == before:
                continue
            if before is None:
                self.loop.add_reader(wanted.fd, self._step, link)
            if wanted.writes:
                self.loop.add_writer(wanted.fd, self._step, link)
            else:
                self.loop.remove_writer(wanted.fd)
            self._watched[link] = wanted

    def _forget(self, link: Link, fd: int) -> None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self.loop.remove_reader(fd)
            self.loop.remove_writer(fd)
        del self._watched[link]

    def _step(self, link: Link) -> None:
        link.step()
        watched = self._watched.get(link)
        if watched is None or watched[::2] != (link.socket, link.wants_write):
            self.watch()

    def close(self) -> None:
        for link, watched in list(self._watched.items()):
            self._forget(link, watched.fd)
        for link in self.links:
            link.close()


class AsyncFlights:
    """Flights of the tasks on one event loop."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._fleet: _LoopFleet | None = None

    async def ask(
        self, requests: Sequence[Request | None], judge: Judge, timeout_ms: int, late: Late
    ) -> Answers:
        fleet = self._fleet_of(asyncio.get_running_loop())
        waiter: asyncio.Future[None] | None = None

        def news() -> None:
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

        flight = Flight(self._nodes, requests, late, news)
        patience = Patience(now_ms(), timeout_ms)
        flight.depart(fleet.links)
        fleet.watch()
        try:
            while left_ms := patience.left_ms(judge(flight.answers), now_ms()):
                waiter = fleet.loop.create_future()
                timer = fleet.loop.call_later(left_ms / 1000, news)
                try:
                    await waiter
                finally:
                    timer.cancel()
        finally:
            flight.end(fleet.links)
        return flight.answers

    def post(self, requests: Sequence[Request | None]) -> None:
        fleet = self._fleet_of(asyncio.get_running_loop())
        Flight(self._nodes, requests, no_late, nobody_waits).depart(fleet.links)
        fleet.watch()

    def _fleet_of(self, loop: asyncio.AbstractEventLoop) -> _LoopFleet:
        fleet = self._fleet
        if fleet is None or fleet.loop is not loop:
            self.close()
            fleet = self._fleet = _LoopFleet(self._nodes, loop)
        return fleet

    def close(self) -> None:
        fleet, self._fleet = self._fleet, None
        if fleet is None:
            return
        # The fleet belongs to another loop; if that is closed, so are its connections.
        with contextlib.suppress(RuntimeError):
            fleet.loop.call_soon_threadsafe(fleet.close)
