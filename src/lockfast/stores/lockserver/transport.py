"""The port between the store and the network, so that a simulated server can replace it.

Methods that may wait are `async def`; the blocking network blocks instead of suspending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lockfast.stores.http.messages import Request, Response


class Transport(Protocol):
    """Requests and replies, for any number of concurrent callers of one kind."""

    @property
    def connections(self) -> int:
        """The number of connections made so far; a new one may lead to another server."""
        ...

    async def ask(self, request: Request, timeout_ms: int) -> Response:
        """Send one request to a server and return its reply, whatever its status.

        Raises StoreUnavailableError if no server received the request, and OutcomeUnknownError if
        one may have executed it.
        """
        ...

    def close(self) -> None: ...


class WakeStream(Protocol):
    """The stream of one wake listener: JSON objects, one per line."""

    async def open(self, request: Request, timeout_ms: int) -> None: ...
    def is_open(self) -> bool: ...
    async def next(self, timeout_ms: int | None) -> Sequence[dict[str, Any]]:
        """Return the lines that have arrived; none after `timeout_ms` or an interrupt.

        Raises StoreUnavailableError if the stream is broken; it is then no longer open.
        """
        ...

    def interrupt(self) -> None:
        """Make `next` return. May be called from any thread."""
        ...

    def drop(self) -> None: ...
    def close(self) -> None: ...


class Network(Protocol):
    """Everything outside one store object."""

    def caller_transport(self) -> Transport: ...
    def keeper_transport(self) -> Transport: ...
    def wake_stream(self) -> WakeStream: ...
    def now_ms(self) -> int: ...
