"""The port between the etcd store and the network: what the store needs from the outside world.

The store's own code never opens a socket, reads a clock or draws a random number. It asks a
`Network`, of which there are three: blocking sockets, asyncio, and a model of etcd inside the
simulator. All methods that may wait are `async def`; the blocking network blocks instead of
suspending.

A request is the path and the JSON body of one call of etcd's JSON gateway, and the reply is the
decoded JSON object, whatever it says: an error reply of etcd's (`{"error": …, "code": …,
"message": …}`) is returned like any other, and the store decides what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from lockfast.ports import Signal

Json: TypeAlias = dict[str, Any]


class Transport(Protocol):
    """Requests and replies, for any number of callers of one kind."""

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        """Send one request to a member of the cluster and return its reply.

        `token` is the value of the `Authorization` header; "" sends none. If a member cannot
        be reached the next one is asked.

        Raises StoreUnavailableError if the request surely was not carried out (its last byte
        never left), OutcomeUnknownError if it may have been (no whole reply came in time),
        StoreError if what came back is not a JSON object within the transport's bounds.
        """
        ...

    async def follow(
        self,
        create_request: Json,
        take: Callable[[Json], bool],
        timeout_ms: int,
        token: str = "",
    ) -> None:
        """Open a watch and give each message to `take`, until that returns True.

        `create_request` is the object of the `create_request` of `POST /v3/watch`. A message
        is one line of the reply, as `Watcher.next` describes it.

        Raises StoreUnavailableError if the stream breaks, ends or takes longer than
        `timeout_ms`.
        """
        ...

    def avoid_member(self) -> None:
        """Ask another member from the next call on: the last one said it cannot serve."""
        ...

    async def pause(self, span_ms: int) -> None:
        """Wait before trying again."""
        ...

    def signal(self) -> Signal:
        """A flag for one caller, whose request travels with another's."""
        ...

    def close(self) -> None: ...


class Watcher(Protocol):
    """The watch of one wake listener; only its keeper uses it, but anybody may interrupt."""

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        """Open a watch on one member, in place of the one that was open before.

        Each request is the object of one `create_request` of `POST /v3/watch`.
        Raises StoreUnavailableError if no member can be reached.
        """
        ...

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        """The messages that have arrived; each is one line of the reply, decoded.

        A message is `{"result": {"header": …, "created": true}}`, `{"result": {"header": …,
        "events": […]}}`, `{"result": {"canceled": true, "compact_revision": …}}`, or
        `{"error": …}`. Returns nothing when `timeout_ms` has passed (None: never) or
        `interrupt` was called; without an open watch it only waits for these.
        Raises StoreUnavailableError when the stream is broken or has ended; from then on it is
        not open.
        """
        ...

    def is_open(self) -> bool: ...

    def interrupt(self) -> None:
        """Make `next` return; from any thread."""
        ...

    def drop(self) -> None:
        """End the watch; another one may be opened."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """Everything outside of one store object: connections, clocks, chance."""

    def caller_transport(self) -> Transport:
        """For the callers of the store's API: suspends under asyncio, blocks otherwise."""
        ...

    def keeper_transport(self) -> Transport:
        """For a keeper or its wake listener, on connections of its own."""
        ...

    def watcher(self) -> Watcher:
        """For one wake listener."""
        ...

    def now_ms(self) -> int:
        """A clock that never goes back."""
        ...

    def wall_us(self) -> int:
        """Microseconds of the wall clock."""
        ...

    def random_bits(self, bits: int) -> int:
        """A random number below 2 ** bits."""
        ...

    def mutex(self) -> AbstractContextManager[Any]:
        """Guards a few assignments; never held across a call."""
        ...
