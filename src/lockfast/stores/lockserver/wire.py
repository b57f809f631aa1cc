"""Encode commands as requests, and decode responses as replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockfast.core.codec import CodecError, decode_reply, parse, reply_of
from lockfast.core.commands import Command, Reply
from lockfast.stores.http.messages import BODY_MAX, Request, Response
from lockfast.stores.lockserver.address import Address
from lockfast.stores.lockserver.errors import error_of
from lockfast.stores.lockserver.routes import request_of
from lockfast.stores.lockserver.transport import Transport
from lockfast.stores.stream import unreadable


class ServerWire:
    """Executes commands on the server."""

    def __init__(
        self,
        address: Address,
        transport: Transport,
        on_close: Callable[[ServerWire], None] = lambda wire: None,
    ) -> None:
        self._address = address
        self._transport = transport
        self._on_close = on_close
        self._headers = (*headers_of(address), "Content-Type: application/json")

    @property
    def connections(self) -> int:
        return self._transport.connections

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        method, path, body = request_of(command)
        request = Request(in_namespace(self._address, path), body, self._headers, method)
        response = await self._transport.ask(request, timeout_ms)
        return self._reply(response)

    def _reply(self, response: Response) -> Reply:
        label = self._address.label
        if response.status < 300:
            try:
                return decode_reply(response.body, BODY_MAX)
            except CodecError as error:
                raise unreadable(label, error) from None
        problem: Any = None
        try:
            problem = parse(response.body, BODY_MAX)
            if isinstance(problem, dict) and "reply" in problem:
                return reply_of(problem["reply"])
        except CodecError as error:
            if problem is not None:
                raise unreadable(label, error) from None
        raise error_of(label, response.status, problem)

    def close(self) -> None:
        self._on_close(self)
        self._transport.close()


def headers_of(address: Address) -> tuple[str, ...]:
    return (f"Authorization: Bearer {address.token}",) if address.token else ()


def in_namespace(address: Address, path: str) -> str:
    if not address.namespace:
        return path
    return f"{path}{'&' if '?' in path else '?'}namespace={address.namespace}"
