"""The dashboard's endpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from lockfast import __version__, drawing
from lockfast.core import commands as c
from lockfast.core.names import check_name
from lockfast.server.border import PAGE_POLICY
from lockfast.server.dashboard import drawings
from lockfast.server.dashboard.history import Revocation
from lockfast.server.dashboard.panels import Guarded, Panel
from lockfast.server.dashboard.picture import Session
from lockfast.server.dashboard.reader import Reader
from lockfast.server.dashboard.stream import stream
from lockfast.server.identity import Refusal
from lockfast.server.logins import CREDENTIAL_MAX
from lockfast.server.problems import DRAINING, INVALID, NOT_FOUND, Problem, forbidden, unauthorized
from lockfast.server.requests import json_body, json_response, stream_response
from lockfast.server.rights import READ, REVOKE
from lockfast.server.service import Caller, principal_in

if TYPE_CHECKING:
    from lockfast.server.app import LockServer

ROOT: Final = "/dashboard"
STATIC: Final = Path(__file__).with_name("static")
MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
WAITING_MAX: Final = 1000
EVENTS_MAX: Final = 200
GRAPH_LOCKS_MAX: Final = 150
FRESH_S: Final = 0.5
GRAPH_FRESH_S: Final = 1.0

Public = Callable[[Request], Awaitable[Response]]


class Dashboard:
    """The page, its login and its data."""

    def __init__(self, server: LockServer, panels: Iterable[Panel] = ()) -> None:
        self._server = server
        self._panels = tuple(panels)
        self._readers: dict[str, Reader] = {}

    def public(self) -> Iterable[tuple[str, str, Public]]:
        """Yield the endpoints that need no credentials: method, path, endpoint."""
        yield "GET", "/", self._page
        yield "POST", f"{ROOT}/login", self._login
        yield "GET", f"{ROOT}/static/{{path:path}}", _files(STATIC)
        yield "GET", f"{ROOT}/drawing.css", _file(Path(drawing.__file__).with_name("style.css"))
        for panel in self._panels:
            yield "GET", f"{panel.address}/{{path:path}}", _files(panel.files)

    def guarded(self) -> Iterable[tuple[str, str, Guarded]]:
        for panel in self._panels:
            yield from panel.endpoints
        yield "GET", f"{ROOT}/session", self._session
        yield "POST", f"{ROOT}/logout", self._logout
        yield "GET", f"{ROOT}/stream", self._stream
        yield "GET", f"{ROOT}/lock", self._lock
        yield "GET", f"{ROOT}/graph", self._graph

    def reader(self, namespace: str) -> Reader:
        found = self._readers.get(namespace)
        if found is None:
            service = self._server.service(namespace)
            found = self._readers[namespace] = Reader(service, self._server.event_log(namespace))
        return found

    def revoked(self, namespace: str, command: c.Revoke | c.RevokeSession, by: str) -> None:
        """Record who revoked, for the page of the lock."""
        if isinstance(command, c.Revoke) and namespace in self._readers:
            made = Revocation(command.session, command.n, by, command.reason)
            self._readers[namespace].history.note_revocation(made)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()

    # ── page and login ───────────────────────────────────────────────────────────────

    async def _page(self, request: Request) -> Response:
        return _response(STATIC / "index.html")

    async def _login(self, request: Request) -> Response:
        """Exchange a bearer token for a login cookie."""
        body = await json_body(request)
        credential = body.get("token") if isinstance(body, dict) else None
        if not isinstance(credential, str):
            raise Problem(422, INVALID, "the body needs token")
        authentication = self._server.authentication
        try:
            if not 0 < len(credential) <= CREDENTIAL_MAX or not credential.isascii():
                raise Refusal("a login with a credential that is too long, or not ASCII")
            identity = authentication.verify(credential)
        except Refusal as refusal:
            self._server.note_refused_login(request, refusal)
            raise unauthorized("this token is not valid here") from None
        begun = authentication.logins.begin(credential)
        response = json_response({"check": begun.check, "principal": identity.principal})
        begun.set_cookie(request, response)
        self._server.note_login(request, identity.principal)
        return response

    async def _logout(self, request: Request, caller: Caller) -> Response:
        response = json_response({})
        self._server.authentication.logins.end(request, response)
        return response

    async def _session(self, request: Request, caller: Caller) -> Response:
        return json_response(self._hello(caller))

    def _hello(self, caller: Caller) -> dict[str, Any]:
        return {
            "principal": caller.principal or None,
            "everything": caller.rights.everything,
            "insecure": self._server.authentication.anonymous,
            "store": self._server.label if caller.rights.everything else None,
            "log": self._server.service("").store.capabilities.watch,
            "version": __version__,
            "panels": [panel.address for panel in self._panels],
        }

    # ── data ─────────────────────────────────────────────────────────────────────────

    async def _stream(self, request: Request, caller: Caller) -> Response:
        if self._server.draining.is_set():
            raise Problem(503, DRAINING)
        caller.usage.may_stream()
        reader = self.reader(_namespace(request))
        last_id = request.headers.get("last-event-id", "")[:64]
        messages = stream(
            reader,
            self._hello,
            last_id,
            lambda: self._server.caller(request),
            self._server.draining,
        )
        return stream_response(messages, "text/event-stream")

    async def _lock(self, request: Request, caller: Caller) -> Response:
        """Return everything about one lock."""
        kind, name = request.query_params.get("kind", "lock"), request.query_params.get("name", "")
        check_name(name)
        if kind not in drawings.KINDS:
            raise Problem(422, INVALID, f"kind is one of {', '.join(drawings.KINDS)}")
        if not caller.rights.allow(READ, name):
            raise forbidden(f"{caller.principal} has no right to read {name!r}")
        reader = self.reader(_namespace(request))
        view = await reader.view(kind, name, WAITING_MAX, FRESH_S)
        events = reader.history.of(kind, name)
        shown = events[-EVENTS_MAX:]
        sessions = {claim.session for claim in (*view.holders, *view.waiting)}
        visible = [
            session
            for session in map(reader.picture.sessions.get, sessions)
            if session is not None and _sees_session(caller, session)
        ]
        now_s = time.time()
        return json_response(
            {
                "now": int(now_s * 1000),
                "view": _plain(view),
                "timeline": drawings.timeline(view, events, now_s, _width(request)),
                "historyBegins": reader.history.begins,
                "events": [list(event) for event in shown],
                "revokedBy": reader.history.revoked_by(shown),
                "sessions": [list(session) for session in visible],
                "revocable": caller.rights.allow(REVOKE, name),
            }
        )

    async def _graph(self, request: Request, caller: Caller) -> Response:
        """Return the wait graph."""
        reader = self.reader(_namespace(request))
        waited_for = [
            lock
            for lock in reader.picture.locks.values()
            if lock.waiting_count or any(claim.wants for claim in lock.holders.values())
        ]
        waited_for.sort(key=lambda lock: -lock.waiting_count)
        views = await asyncio.gather(
            *(
                reader.view(*lock.key, WAITING_MAX, GRAPH_FRESH_S)
                for lock in waited_for[:GRAPH_LOCKS_MAX]
                if caller.rights.allow(READ, lock.key[1])
            )
        )
        return json_response(
            drawings.wait_graph(views, lambda name: caller.rights.allow(READ, name))
        )


def _sees_session(caller: Caller, session: Session) -> bool:
    return caller.rights.everything or principal_in(session.owner) == caller.principal


def _plain(view: c.ResourceView) -> dict[str, Any]:
    found = view._asdict()
    for part in ("holders", "waiting"):
        found[part] = [
            {
                **claim._asdict(),
                "places": [
                    place._asdict() for place in claim.places if place[:2] == (view.kind, view.name)
                ],
                "several": len(claim.places),
            }
            for claim in getattr(view, part)
        ]
    return found


def _namespace(request: Request) -> str:
    return request.query_params.get("namespace", "")


def _width(request: Request) -> float:
    text = request.query_params.get("width", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1000.0


# ── static files ─────────────────────────────────────────────────────────────────────


def _files(directory: Path) -> Public:
    """Return an endpoint for the files that a directory contains now."""
    known = {
        path.relative_to(directory).as_posix(): path
        for path in directory.rglob("*")
        if path.is_file() and path.suffix in MEDIA
    }

    async def serve(request: Request) -> Response:
        found = known.get(request.path_params["path"])
        if found is None:
            raise Problem(404, NOT_FOUND)
        return _response(found)

    return serve


def _file(path: Path) -> Public:
    async def serve(request: Request) -> Response:
        return _response(path)

    return serve


def _response(path: Path) -> Response:
    headers = {"content-security-policy": PAGE_POLICY, "x-frame-options": "DENY"}
    return Response(path.read_bytes(), headers=headers, media_type=MEDIA[path.suffix])
