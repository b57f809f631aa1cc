"""The endpoints of a server that is a node of a majority."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from lockfast.core.commands import Ended
from lockfast.core.reasons import CLOSED, UNKNOWN_SESSION
from lockfast.server import streams
from lockfast.server.checks import check_session
from lockfast.server.node_service import NodeHost, NodeService
from lockfast.server.problems import INVALID, Problem
from lockfast.server.replies import response_to
from lockfast.server.requests import json_body, stream_response
from lockfast.server.service import Caller
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.json_codec import (
    NODE,
    PATHS,
    REQUEST_MAX,
    encode,
    request_of,
    wakes_path,
)

if TYPE_CHECKING:
    from lockfast.server.app import LockServer

UPKEEP: Final = frozenset({m.Keep, m.Sync, m.Give, m.End})
"""Requests that keep or release what a client holds; they have their own rate limit."""

Guarded = Callable[[Request, Caller], Awaitable[Response]]


class NodeRoute(NamedTuple):
    method: str
    path: str
    endpoint: Guarded
    is_upkeep: bool = False
    name: str = "other"


class NodeEndpoints:
    def __init__(self, server: LockServer, host: NodeHost) -> None:
        self._server = server
        self._host = host

    def routes(self) -> Iterable[NodeRoute]:
        yield NodeRoute("GET", NODE, self._about)
        yield NodeRoute("GET", wakes_path("{session}"), self._wakes)
        for kind, path in PATHS.items():
            yield NodeRoute(
                "POST", path, self._request(kind), kind in UPKEEP, f"Node{kind.__name__}"
            )

    async def _about(self, request: Request, caller: Caller) -> Response:
        return _json(await self._node(request).about())

    def _request(self, kind: type) -> Guarded:
        """Return the endpoint that executes one kind of request."""

        async def execute(request: Request, caller: Caller) -> Response:
            if set(request.query_params) - {"namespace"}:
                raise Problem(422, INVALID, "the only query parameter is namespace")
            asked = request_of(kind, await json_body(request, REQUEST_MAX))
            answer = await self._node(request).execute(caller, asked)
            self._note(caller, asked, answer)
            return _json(answer)

        return execute

    def _note(self, caller: Caller, asked: m.Request, answer: m.Answer) -> None:
        """Write to the audit log that a session was ended for another reason than its own end."""
        if isinstance(asked, m.End) and isinstance(answer, m.Given) and asked.reason != CLOSED:
            self._server.audit.write(
                "revoked",
                principal=caller.principal,
                session=asked.session,
                reason=asked.reason,
                found=answer.found,
            )

    async def _wakes(self, request: Request, caller: Caller) -> Response:
        self._server.may_stream(caller)
        node, session = self._node(request), request.path_params["session"]
        check_session(session)
        if await node.is_foreign(caller, session):
            return response_to(Ended(UNKNOWN_SESSION))
        media, write = streams.format_for(request.headers.get("accept", ""))
        lines = streams.wakes(
            node, session, write, lambda: self._server.caller(request), self._server.draining
        )
        return stream_response(lines, media)

    def _node(self, request: Request) -> NodeService:
        return self._host.node(self._server.checked_namespace(request))


def _json(message: m.Answer | m.About) -> Response:
    return Response(encode(message), media_type="application/json")
