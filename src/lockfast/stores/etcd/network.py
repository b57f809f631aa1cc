"""HTTP to the members of a cluster: the network of the shipped store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.ports import Signal
from lockfast.runtimes.threads import ThreadSignal
from lockfast.stores.derived.machine import ThisMachine
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.transport import Json, Transport, Watcher
from lockfast.stores.http.blocking import LineStream, Pool, deadline
from lockfast.stores.http.failover import HttpPool, ask
from lockfast.stores.http.members import Members
from lockfast.stores.http.messages import (
    ProtocolError,
    Request,
    Response,
    encode,
    json_object,
)

WATCH: Final = "/v3/watch"
_HAS_LEADER: Final = "Grpc-Metadata-Hasleader: true"
"""Makes a member that is cut off from its leader end the watch instead of staying silent."""


class HttpTransport:
    """Calls over a connection pool, trying one member after another."""

    def __init__(self, members: Members, pool: HttpPool, make_signal: Callable[[], Signal]) -> None:
        self._members = members
        self._pool = pool
        self.signal = make_signal

    @property
    def connections(self) -> int:
        """The number of connections made so far; a new one may lead to another member."""
        return self._pool.connections

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        request = Request(path, body.encode(), _headers(token))
        return self._answer(await ask(self._members, self._pool, request, timeout_ms))

    def _answer(self, response: Response) -> Json:
        label = self._members.label
        try:
            return json_object(response.body)
        except ProtocolError as error:
            if response.status == 404:
                return {"error": "Not Found", "code": 5}
            if response.status in (502, 503, 504):  # from an intermediate proxy
                raise OutcomeUnknownError(label, f"answered HTTP {response.status}") from None
            raise StoreError(label, f"{error}; is this etcd's JSON gateway?") from None

    async def follow(
        self,
        create_request: Json,
        take: Callable[[Json], bool],
        timeout_ms: int,
        token: str = "",
    ) -> None:
        member = self._members.current
        body = encode({"create_request": create_request}).encode()
        headers = (*_headers(token), _HAS_LEADER)
        try:
            await self._pool.follow(
                member,
                Request(WATCH, body, headers),
                deadline(timeout_ms),
                lambda messages: any(take(message) for message in messages),
            )
        except StoreUnavailableError:
            self._members.suspect(member)
            raise

    def avoid_member(self) -> None:
        self._members.suspect(self._members.current)

    async def pause(self, span_ms: int) -> None:
        await self._pool.pause(span_ms / 1000)

    def close(self) -> None:
        self._pool.close()


class HttpWatcher:
    """A watch on its own connection, in the keeper's thread."""

    def __init__(self, members: Members) -> None:
        self._stream = LineStream(members)
        self.is_open = self._stream.is_open
        self.interrupt = self._stream.interrupt
        self.drop = self._stream.drop
        self.close = self._stream.close

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        lines = [encode({"create_request": request}).encode() for request in create_requests]
        headers = (*_headers(token), _HAS_LEADER)
        self._stream.open(Request(WATCH, b"\n".join(lines), headers), deadline(timeout_ms))

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        return self._stream.next(None if timeout_ms is None else timeout_ms / 1000)


class HttpNetwork(ThisMachine):
    """This machine's sockets, clocks and random numbers, for blocking callers."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.members = Members(address.label, address.members, address.tls)

    def caller_transport(self) -> Transport:
        return self.keeper_transport()

    def keeper_transport(self) -> Transport:
        return HttpTransport(self.members, Pool(self.members), ThreadSignal)

    def watcher(self) -> Watcher:
        return HttpWatcher(self.members)


def _headers(token: str) -> tuple[str, ...]:
    return (f"Authorization: {token}",) if token else ()
