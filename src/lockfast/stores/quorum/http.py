"""Lockfast servers as nodes: requests are POSTs on a connection that stays open.

Requests of several tasks share a connection and are sent without waiting for earlier answers, as
HTTP/1.1 permits; a server answers them in order. Wakes are lines of a streamed reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockfast.core.codec import CodecError, parse
from lockfast.core.commands import WAKE_FREE
from lockfast.errors import (
    LockfastError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
)
from lockfast.stores.http.members import Member, unreachable
from lockfast.stores.http.messages import (
    BODY_MAX,
    LineReader,
    ProtocolError,
    ReplyReader,
    Response,
)
from lockfast.stores.http.messages import Request as HttpRequest
from lockfast.stores.lockserver.address import Address
from lockfast.stores.lockserver.errors import error_of
from lockfast.stores.lockserver.wake_listener import LINES
from lockfast.stores.lockserver.wire import headers_of, in_namespace
from lockfast.stores.quorum.identities import Identities
from lockfast.stores.quorum.json_codec import (
    NODE,
    PATHS,
    about_in,
    answer_to,
    encode,
    wakes_path,
)
from lockfast.stores.quorum.links import Endpoint, Link, Tell
from lockfast.stores.quorum.messages import About, Answer, NoAnswer, Request
from lockfast.stores.stream import unreadable


class HttpNodes:
    """The servers of one store; each address has one member."""

    def __init__(
        self, label: str, addresses: Sequence[Address], skew_us: int, silence_ms: int
    ) -> None:
        self._label = label
        self._addresses = addresses
        self._skew_us = skew_us
        self._silence_ms = silence_ms
        self._identities = Identities([address.label for address in addresses])

    def __len__(self) -> int:
        return len(self._addresses)

    def links(self) -> list[Link]:
        def link(node: int, address: Address) -> Link:
            def framing() -> HttpFraming:
                return HttpFraming(self, node, address)

            return Link(_endpoint(address), framing)

        return [link(node, address) for node, address in enumerate(self._addresses)]

    def check(self, node: int, about: About) -> StoreError | None:
        """Return why a server cannot be this node, judging by what it says about itself."""
        ours, theirs = (self._skew_us, self._silence_ms), (about.skew_us, about.silence_ms)
        if ours != theirs:
            return StoreMisconfiguredError(
                self._addresses[node].label,
                f"runs with skew={theirs[0] / 1e6:g} and silence={theirs[1] / 1e3:g}, but the URL "
                f"says skew={ours[0] / 1e6:g} and silence={ours[1] / 1e3:g}",
                "write the same in the URL of every client and in --skew and --silence",
            )
        self._identities.note(node, about.id)
        return self._identities.objection(node)

    def objection(self, node: int) -> StoreError | None:
        return self._identities.objection(node)

    def pack_all(self, requests: Sequence[Request | None]) -> list[bytes | None]:
        bodies: dict[int, bytes] = {}
        packed: list[bytes | None] = []
        for address, request in zip(self._addresses, requests, strict=True):
            if request is None:
                packed.append(None)
                continue
            body = bodies.get(id(request))
            if body is None:
                body = bodies[id(request)] = encode(request)
            headers = (*headers_of(address), "Content-Type: application/json")
            asked = HttpRequest(in_namespace(address, PATHS[type(request)]), body, headers)
            packed.append(asked.packed(str(address.members[0])))
        return packed

    def answer_to(self, request: Request, reply: Any) -> Answer | NoAnswer:
        assert isinstance(reply, Response)
        try:
            return answer_to(request, reply.body)
        except CodecError as error:
            return NoAnswer(unreadable(self._label, error), maybe=True)

    def inbox_of(self, session: str) -> str:
        return session

    def wake_links(self, session: str, on_push: Tell) -> list[Link]:
        def link(address: Address) -> Link:
            return Link(_endpoint(address), lambda: WakeFraming(address, session), on_push)

        return [link(address) for address in self._addresses]

    def woken_claim(self, session: str, message: Any) -> int | None:
        n = message.get("n")
        return n if message.get("what") == WAKE_FREE and type(n) is int else None


def _endpoint(address: Address) -> Endpoint:
    member: Member = address.members[0]
    return Endpoint(address.label, member.host, member.port, tls=address.tls)


def about_request(address: Address) -> HttpRequest:
    return HttpRequest(in_namespace(address, NODE), b"", headers_of(address), "GET")


def about_of(label: str, response: Response) -> About | LockfastError:
    """Return what a server says about its node, or why it does not."""
    if response.status == 404:
        return StoreMisconfiguredError(
            label, "is not a node", "start it with lockfast serve --node DIRECTORY"
        )
    if response.status >= 300:
        return refused(label, response)
    try:
        return about_in(response.body)
    except CodecError as error:
        return StoreMisconfiguredError(
            label, f"is not a node of this version ({error})", "use the same release everywhere"
        )


def refused(label: str, response: Response) -> LockfastError:
    try:
        problem = parse(response.body, BODY_MAX)
    except CodecError:
        problem = None
    return error_of(label, response.status, problem)


class HttpFraming:
    """HTTP/1.1 on one connection; its greeting asks the server about its node."""

    window = 16

    def __init__(self, nodes: HttpNodes, node: int, address: Address) -> None:
        self._nodes = nodes
        self._node = node
        self._address = address
        self._reader = ReplyReader()
        self.is_over = False

    def greeting(self) -> Sequence[bytes]:
        return (about_request(self._address).packed(str(self._address.members[0])),)

    def check_greeting(self, reply: Any) -> LockfastError | None:
        found = about_of(self._address.label, reply)
        return found if isinstance(found, LockfastError) else self._nodes.check(self._node, found)

    def objection(self) -> StoreError | None:
        return self._nodes.objection(self._node)

    def feed(self, data: bytes) -> Iterator[Any]:
        try:
            while data:
                self._reader.feed(data)
                if not self._reader.done:
                    return
                reply, data = self._reader.response(), self._reader.rest()
                self._reader = ReplyReader()
                self.is_over = not reply.keeps
                yield reply
        except ProtocolError as error:
            raise ConnectionAbortedError(str(error)) from error

    def refusal(self, reply: Any) -> NoAnswer | None:
        if reply.status < 300:
            return None
        error = refused(self._address.label, reply)
        return NoAnswer(error, maybe=isinstance(error, OutcomeUnknownError))

    def unreachable(self, error: OSError) -> StoreError:
        return unreachable(self._address.label, error)


class WakeFraming:
    """A streamed reply on one connection: the first line confirms that the server listens."""

    window = 1

    def __init__(self, address: Address, session: str) -> None:
        self._address = address
        self._session = session
        self._reader = LineReader()

    @property
    def is_over(self) -> bool:
        return self._reader.done

    def greeting(self) -> Sequence[bytes]:
        headers = (*headers_of(self._address), f"Accept: {LINES}")
        path = in_namespace(self._address, wakes_path(self._session))
        return (HttpRequest(path, b"", headers, "GET").packed(str(self._address.members[0])),)

    def check_greeting(self, reply: Any) -> LockfastError | None:
        if "what" in reply:
            return None
        status = reply.get("status")
        return error_of(self._address.label, status if isinstance(status, int) else 500, reply)

    def objection(self) -> StoreError | None:
        return None

    def feed(self, data: bytes) -> Iterator[Any]:
        try:
            yield from self._reader.feed(data)
        except ProtocolError as error:
            raise ConnectionAbortedError(str(error)) from error

    def refusal(self, reply: Any) -> NoAnswer | None:
        return None

    def unreachable(self, error: OSError) -> StoreError:
        return unreachable(self._address.label, error)
