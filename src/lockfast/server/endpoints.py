"""The endpoints, called once the caller is known."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from lockfast import __version__
from lockfast.core import commands as c
from lockfast.core.codec import CodecError, command_of, encode_fields
from lockfast.flow import deadlock
from lockfast.flow.admin import deadlock_info, read_all_holders
from lockfast.flow.keeper import LOOK_SLACK_MS
from lockfast.flow.retry import Backoff
from lockfast.flow.wait_graph import wait_graph
from lockfast.runtimes.platform import now_ms
from lockfast.server import streams
from lockfast.server.checks import check_session
from lockfast.server.openapi import document
from lockfast.server.problems import DRAINING, INVALID, Problem
from lockfast.server.replies import response_to
from lockfast.server.requests import json_body, json_response, stream_response
from lockfast.server.service import Caller, Service
from lockfast.stores.lockserver.errors import UNAVAILABLE
from lockfast.stores.lockserver.routes import ROOT, Route, command_from
from lockfast.telemetry.graphs import as_plain

if TYPE_CHECKING:
    from lockfast.server.app import LockServer

WAIT_S_MAX: Final = 60
READY_S: Final = 2.0

Guarded = Callable[[Request, Caller], Awaitable[Response]]


class Endpoints:
    def __init__(self, server: LockServer, *, is_node: bool) -> None:
        self._server = server
        self._document = encode_fields(document(is_node=is_node))

    def others(self) -> Iterable[tuple[str, str, Guarded]]:
        """Yield the endpoints that are not a single command: method, path, endpoint."""
        yield "POST", f"{ROOT}/sessions", self._new_session
        yield "GET", f"{ROOT}/sessions/{{session}}/wakes", self._wakes
        yield "POST", f"{ROOT}/revocations", self._revoke_by_name
        yield "GET", f"{ROOT}/deadlocks", self._deadlocks
        yield "GET", f"{ROOT}/wait-graph", self._wait_graph
        yield "GET", f"{ROOT}/whoami", self._whoami
        yield "GET", "/metrics", self._metrics

    def public(self) -> Iterable[tuple[str, Callable[[Request], Awaitable[Response]]]]:
        """Yield the endpoints that need no credentials: path, endpoint."""
        yield "/healthz", self._healthy
        yield "/readyz", self._ready
        yield "/openapi.json", self._openapi

    # ── commands ─────────────────────────────────────────────────────────────────────

    def command(self, route: Route) -> Guarded:
        """Return the endpoint that executes the command of a route."""

        async def execute(request: Request, caller: Caller) -> Response:
            if route.command is c.Events and streams.SSE in request.headers.get("accept", ""):
                return self._events(request, caller)
            body = None if route.uses_query else await json_body(request)
            command = command_from(route, request.path_params, _query(request), body)
            service = self._service(request)
            wait_s = _wait_s(request) if route.command in (c.Enter, c.Look, c.Convert) else 0
            if not wait_s:
                reply = await service.execute(caller, command)
            else:
                reply = await self._wait(service, caller, command, wait_s)
            self._note(request, caller, command, reply)
            response = response_to(reply)
            if wait_s:
                response.headers["preference-applied"] = f"wait={wait_s}"
            return response

        return execute

    async def _wait(
        self, service: Service, caller: Caller, command: c.Command, wait_s: int
    ) -> c.Reply:
        """Execute a command; while its claim is queued, wait for a grant, an end or the timeout."""
        assert isinstance(command, c.Enter | c.Look | c.Convert)
        look = c.Look(command.session, command.n)
        changed = asyncio.Event()

        def hear(wake: c.Wake) -> None:
            if wake.n in (0, look.n):
                changed.set()

        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        looking = Backoff()
        with service.wakes.hearing(command.session, hear):
            reply = await service.execute(caller, command)
            while isinstance(reply, c.Queued) and not self._server.draining.is_set():
                left_s = until_s - loop.time()
                if left_s <= 0:
                    break
                # Look again when a claim ahead may expire: expiry sends no wake. If the claim is
                # still there, the store's estimate was too early; then pause longer each time.
                pause_ms = max(reply.look_ms + LOOK_SLACK_MS, looking.at_ms - now_ms())
                at_most_s = min(left_s, pause_ms / 1000)
                if await streams.first_of(changed, self._server.draining, at_most_s):
                    looking.succeeded()
                else:
                    looking.failed(now_ms())
                changed.clear()
                reply = await service.execute(caller, look)
        return reply

    async def _new_session(self, request: Request, caller: Caller) -> Response:
        """Open a session with an id that the server chooses."""
        session = f"s-{secrets.token_hex(16)}"
        body = await json_body(request)
        if not isinstance(body, dict):
            body = {}
        fields = {"ttl_ms": 30_000, "owner": "", **body, "session": session}
        reply = await self._service(request).execute(caller, command_of(c.Open, fields))
        if not isinstance(reply, c.Done):
            return response_to(reply)
        made = {"session": session, "ttl_ms": fields["ttl_ms"]}
        location = f"{ROOT}/sessions/{session}"
        return Response(encode_fields(made), 201, {"location": location}, "application/json")

    async def _revoke_by_name(self, request: Request, caller: Caller) -> Response:
        """Revoke the claims of all holders of a lock."""
        body = await json_body(request)
        if not isinstance(body, dict) or not {"name", "reason"} <= set(body) <= _REVOCATION:
            raise Problem(422, INVALID, "the body needs name and reason, and may have kind and by")
        if not all(isinstance(value, str) for value in body.values()):
            raise Problem(422, INVALID, "all members have to be strings")
        service = self._service(request)
        kind, name = body.get("kind", "lock"), body["name"]
        view = await read_all_holders(partial(service.execute, caller), kind, name)
        revoked = 0
        for holder in view.holders if isinstance(view, c.ResourceView) else ():
            command = c.Revoke(holder.session, holder.n, body.get("by", ""), body["reason"])
            reply = await service.execute(caller, command)
            self._note(request, caller, command, reply)
            revoked += isinstance(reply, c.Done) and reply.found
        return json_response({"revoked": revoked})

    def _note(self, request: Request, caller: Caller, command: c.Command, reply: c.Reply) -> None:
        if isinstance(command, c.Revoke | c.RevokeSession) and isinstance(reply, c.Done):
            self._server.audit.write(
                "revoked",
                principal=caller.principal,
                session=command.session,
                n=getattr(command, "n", None),
                reason=command.reason,
                found=reply.found,
            )
            namespace = request.query_params.get("namespace", "")
            by = caller.principal or command.by
            self._server.dashboard.revoked(namespace, command, by)

    # ── streams ──────────────────────────────────────────────────────────────────────

    async def _wakes(self, request: Request, caller: Caller) -> Response:
        self._server.may_stream(caller)
        service = self._service(request)
        session = request.path_params["session"]
        check_session(session)
        if await service.is_foreign(caller, session):
            return response_to(c.Ended("unknown session"))
        media, write = streams.format_for(request.headers.get("accept", ""))
        lines = streams.wakes(
            service, session, write, lambda: self._server.caller(request), self._server.draining
        )
        return stream_response(lines, media)

    def _events(self, request: Request, caller: Caller) -> Response:
        self._server.may_stream(caller)
        query = _query(request)
        after = request.headers.get("last-event-id") or query.get("after") or ""
        if after and not (after.isascii() and after.isdigit() and len(after) < 17):
            raise Problem(422, INVALID, "Last-Event-ID has to be a position of the log")
        log = self._server.event_log(query.get("namespace", ""))
        lines = streams.events(
            log,
            int(after) if after else None,
            query.get("prefix", ""),
            streams.as_sse,
            lambda: self._server.caller(request),
            self._server.draining,
        )
        return stream_response(lines, streams.SSE)

    # ── reading ──────────────────────────────────────────────────────────────────────

    async def _deadlocks(self, request: Request, caller: Caller) -> Response:
        send = self._reading_as(request, caller)
        cycles = await deadlock.all_deadlocks(send, now_ms)
        return json_response({"deadlocks": [deadlock_info(cycle)._asdict() for cycle in cycles]})

    async def _wait_graph(self, request: Request, caller: Caller) -> Response:
        return json_response(as_plain(await wait_graph(self._reading_as(request, caller))))

    def _reading_as(self, request: Request, caller: Caller) -> deadlock.Send:
        """Return a way to read the store that shows what the caller may read, and no more."""
        service = self._service(request)
        return lambda command: service.execute(caller, command)

    async def _whoami(self, request: Request, caller: Caller) -> Response:
        return json_response({"principal": caller.principal or None, "version": __version__})

    async def _healthy(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Report ready if the store answers and the server is not shutting down."""
        if self._server.draining.is_set():
            raise Problem(503, DRAINING)
        try:
            async with asyncio.timeout(READY_S):
                await self._server.service("").send(c.Sessions("", 1))
        except TimeoutError:
            raise Problem(503, UNAVAILABLE, f"no answer within {READY_S:g} s") from None
        return json_response({"status": "ready"})

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    async def _metrics(self, request: Request, caller: Caller) -> Response:
        """Return the server's counters, and those of prometheus-client if it is installed."""
        text = self._server.counters.text(self._server.gauges())
        try:
            from prometheus_client import generate_latest

            text += generate_latest().decode()
        except ImportError:
            pass
        return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    def _service(self, request: Request) -> Service:
        return self._server.service(request.query_params.get("namespace", ""))


_REVOCATION: Final = {"kind", "name", "reason", "by"}


def _query(request: Request) -> dict[str, str]:
    found = dict(request.query_params)
    if len(request.query_params.multi_items()) > len(found):
        raise CodecError("a query parameter is given twice")
    found.pop("namespace", None)
    return found


def _wait_s(request: Request) -> int:
    """Return the seconds of `Prefer: wait=10` (RFC 7240), at most WAIT_S_MAX; 0 without it."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.strip().partition("=")
        if name.lower() == "wait":
            value = value.partition(";")[0].strip().strip('"')
            if not (value.isascii() and value.isdigit() and len(value) < 9):
                raise Problem(422, INVALID, "write Prefer: wait=10")
            return min(int(value), WAIT_S_MAX)
    return 0
