"""Redis servers as nodes: requests are calls of a script, wakes are published messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

from lockfast.errors import StoreError
from lockfast.stores.passwords import plain
from lockfast.stores.quorum.codec import (
    answer_to,
    call_of,
    inbox_of,
    keys_of,
    script,
    script_sha,
)
from lockfast.stores.quorum.identities import Identities
from lockfast.stores.quorum.links import Endpoint, Link, Tell
from lockfast.stores.quorum.messages import Answer, NoAnswer, Request
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.connection import unreachable
from lockfast.stores.redis.errors import is_script_missing, translate
from lockfast.stores.redis.resp import PENDING, ProtocolError, ReplyReader, pack, pack_arguments

ANSWER_BYTES_MAX: Final = 1 << 24
"""A session may have tens of thousands of locks, which a node lists in one answer."""


class RedisNodes:
    """The servers of one store."""

    def __init__(
        self, addresses: Sequence[Address], namespace: str, skew_us: int, silence_ms: int
    ) -> None:
        self._addresses = addresses
        self._namespace = namespace
        self._skew_us = skew_us
        self._silence_ms = silence_ms
        self._identities = Identities([address.label for address in addresses])

    def __len__(self) -> int:
        return len(self._addresses)

    def links(self) -> list[Link]:
        loading, hello = pack("SCRIPT", "LOAD", script()), self._packed("hello")

        def link(node: int, address: Address) -> Link:
            def framing() -> RedisFraming:
                return RedisFraming(address, (loading, hello), (self._identities, node))

            return Link(_endpoint(address), framing)

        return [link(node, address) for node, address in enumerate(self._addresses)]

    def pack_all(self, requests: Sequence[Request | None]) -> list[bytes | None]:
        packed: dict[int, bytes] = {}
        for request in requests:
            if request is not None and id(request) not in packed:
                name, arguments = call_of(request)
                packed[id(request)] = self._packed(name, *arguments)
        return [None if request is None else packed[id(request)] for request in requests]

    def _packed(self, name: str, *arguments: str | int) -> bytes:
        count, fixed = _fixed(self._namespace, name, self._skew_us, self._silence_ms)
        return b"*%d\r\n%b%b" % (count + len(arguments), fixed, pack_arguments(arguments))

    def answer_to(self, request: Request, reply: Any) -> Answer | NoAnswer:
        return answer_to(request, reply)

    def inbox_of(self, session: str) -> str:
        return inbox_of(self._namespace, session)

    def wake_links(self, session: str, on_push: Tell) -> list[Link]:
        greeting = (pack("SUBSCRIBE", self.inbox_of(session)),)

        def link(address: Address) -> Link:
            return Link(_endpoint(address), lambda: RedisFraming(address, greeting), on_push)

        return [link(address) for address in self._addresses]

    def woken_claim(self, session: str, message: Any) -> int | None:
        try:
            kind, channel, text = message
            named, n = text.split(" ")
            claim = int(n)
        except (ValueError, TypeError, AttributeError):
            return None  # not from a node: any user with the permission may publish
        is_ours = kind == "message" and channel == self.inbox_of(session) and named == session
        return claim if is_ours else None


@cache
def _fixed(namespace: str, name: str, skew_us: int, silence_ms: int) -> tuple[int, bytes]:
    """Return the arguments that all requests of one name share: how many, and packed."""
    keys = keys_of(namespace)
    fixed: list[str | int] = ["EVALSHA", script_sha(), len(keys), *keys]
    fixed += [name, "", skew_us, silence_ms]
    return len(fixed), pack_arguments(fixed)


def _endpoint(address: Address) -> Endpoint:
    return Endpoint(address.label, address.host, address.port, address.path, address.tls)


class RedisFraming:
    """RESP on one connection."""

    window = 1 << 20

    def __init__(
        self,
        address: Address,
        greeting: Sequence[bytes],
        identity: tuple[Identities, int] | None = None,
    ) -> None:
        """`identity`: where to record the server's run id, which is the last greeting's reply."""
        self._address = address
        self._greeting = greeting
        self._identity = identity
        self._unanswered = 0
        self._reader = ReplyReader()
        self._reader.bytes_max = ANSWER_BYTES_MAX
        self.is_over = False

    def greeting(self) -> Sequence[bytes]:
        # Read again for each connection: the password may have changed.
        found = (*_credentials(self._address), *self._greeting)
        self._unanswered = len(found)
        return found

    def check_greeting(self, reply: Any) -> StoreError | None:
        self._unanswered -= 1
        if isinstance(reply, Exception):
            return translate(str(reply), self._address.label)
        if self._unanswered or self._identity is None:
            return None
        identities, node = self._identity
        # Databases of one server are different nodes, if not independent ones.
        identities.note(node, f"{reply}/{self._address.db}")
        return self.objection()

    def objection(self) -> StoreError | None:
        if self._identity is None:
            return None
        identities, node = self._identity
        return identities.objection(node)

    def feed(self, data: bytes) -> Iterator[Any]:
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not PENDING:
                yield reply
        except ProtocolError as error:
            raise ConnectionAbortedError(str(error)) from error

    def refusal(self, reply: Any) -> NoAnswer | None:
        if not isinstance(reply, Exception):
            return None
        if is_script_missing(str(reply)):
            self.is_over = True  # the greeting of the next connection loads the script
        return NoAnswer(translate(str(reply), self._address.label))

    def unreachable(self, error: OSError) -> StoreError:
        return unreachable(self._address, error)


def _credentials(address: Address) -> list[bytes]:
    """Return the commands that are sent on a new connection before its greeting."""
    commands = []
    if address.username:
        password = plain(address.password, address.label)
        commands.append(pack("AUTH", address.username, password))
    elif address.password:
        commands.append(pack("AUTH", plain(address.password, address.label)))
    if address.db:
        commands.append(pack("SELECT", address.db))
    return commands
