"""The port between the etcd store and the network.

The store's own code never opens a socket, reads a clock or draws a random number. It uses a
`Network`, of which there are three: blocking sockets, asyncio, and a model of etcd in the
simulator. All methods that may wait are `async def`; the blocking network blocks instead of
suspending.

A request is the path and JSON body of one call to etcd's JSON gateway. The reply is the decoded
JSON object: an error reply (`{"error": …, "code": …, "message": …}`) is returned like any other,
and the store decides what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from lockfast.ports import Signal
from lockfast.stores.derived.machine import Machine

Json: TypeAlias = dict[str, Any]


class Transport(Protocol):
    """Requests and replies, for any number of concurrent callers of one kind."""

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        """Send one request to a member of the cluster and return its reply.

        `token` is the value of the `Authorization` header; "" sends none. If a member cannot be
        reached, the next one is tried.

        Raises StoreUnavailableError if the request was certainly not executed (its last byte was
        not sent), OutcomeUnknownError if it may have been (no complete reply arrived in time),
        StoreError if the reply is not a JSON object within the transport's bounds.
        """
        ...

    async def follow(
        self,
        create_request: Json,
        take: Callable[[Json], bool],
        timeout_ms: int,
        token: str = "",
    ) -> None:
        """Open a watch and pass each message to `take`, until `take` returns True.

        `create_request` is the `create_request` object of `POST /v3/watch`. A message is one line
        of the reply, as described at `Watcher.next`.

        Raises StoreUnavailableError if the stream breaks, ends or takes longer than `timeout_ms`.
        """
        ...

    def avoid_member(self) -> None:
        """Use another member from the next call on, because the current one cannot serve."""
        ...

    async def pause(self, span_ms: int) -> None:
        """Wait before a retry."""
        ...

    def signal(self) -> Signal:
        """Return a flag for one caller whose transaction another caller may send."""
        ...

    def close(self) -> None: ...


class Watcher(Protocol):
    """The watch of one wake listener. Only its keeper uses it, but any thread may interrupt it."""

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        """Open a watch on one member, replacing the previous one.

        Each request is the `create_request` object of one `POST /v3/watch`. Raises
        StoreUnavailableError if no member can be reached.
        """
        ...

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        """Return the messages that have arrived; each is one decoded line of the reply.

        A message is `{"result": {"header": …, "created": true}}`, `{"result": {"header": …,
        "events": […]}}`, `{"result": {"canceled": true, "compact_revision": …}}`, or `{"error":
        …}`. Returns nothing after `timeout_ms` (None: no limit) or a call of `interrupt`; without
        an open watch it only waits for these. Raises StoreUnavailableError if the stream is broken
        or has ended; from then on the watch is not open.
        """
        ...

    def is_open(self) -> bool: ...

    def interrupt(self) -> None:
        """Make `next` return; callable from any thread."""
        ...

    def drop(self) -> None:
        """End the watch; another one may be opened."""
        ...

    def close(self) -> None: ...


class Network(Machine, Protocol):
    """Everything outside one store object: connections, clocks, random numbers."""

    def caller_transport(self) -> Transport:
        """Return a transport for API callers: it suspends under asyncio, blocks otherwise."""
        ...

    def keeper_transport(self) -> Transport:
        """Return a transport with its own connections, for a keeper or its wake listener."""
        ...

    def watcher(self) -> Watcher:
        """Return a watcher for one wake listener."""
        ...
