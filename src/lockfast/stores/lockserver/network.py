"""The network of the shipped store: this machine's sockets, for blocking callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockfast.runtimes.platform import now_ms
from lockfast.stores.http.blocking import LineStream, Pool, deadline
from lockfast.stores.http.failover import HttpPool, ask
from lockfast.stores.http.members import Members
from lockfast.stores.http.messages import Request, Response
from lockfast.stores.lockserver.address import Address
from lockfast.stores.lockserver.transport import Transport, WakeStream


class HttpTransport:
    def __init__(self, members: Members, pool: HttpPool) -> None:
        self._members = members
        self._pool = pool

    @property
    def connections(self) -> int:
        return self._pool.connections

    async def ask(self, request: Request, timeout_ms: int) -> Response:
        return await ask(self._members, self._pool, request, timeout_ms)

    def close(self) -> None:
        self._pool.close()


class HttpWakeStream:
    def __init__(self, members: Members) -> None:
        self._stream = LineStream(members)
        self.is_open = self._stream.is_open
        self.interrupt = self._stream.interrupt
        self.drop = self._stream.drop
        self.close = self._stream.close

    async def open(self, request: Request, timeout_ms: int) -> None:
        self._stream.open(request, deadline(timeout_ms))

    async def next(self, timeout_ms: int | None) -> Sequence[dict[str, Any]]:
        return self._stream.next(None if timeout_ms is None else timeout_ms / 1000)


class HttpNetwork:
    def __init__(self, address: Address) -> None:
        self.members = Members(address.label, address.members, address.tls)

    def caller_transport(self) -> Transport:
        return self.keeper_transport()

    def keeper_transport(self) -> Transport:
        return HttpTransport(self.members, Pool(self.members))

    def wake_stream(self) -> WakeStream:
        return HttpWakeStream(self.members)

    def now_ms(self) -> int:
        return now_ms()
