"""A guard before an HTTP service: `Fencing-Token: orders/42=17` is checked before the handler.

The middleware refuses a request whose token is older than one already admitted: 412 with the newer
token. Wrap the application of the service that owns the resource:

    app = FencedASGI(app, guard)                     # Starlette, FastAPI, Django (ASGI)
    app.wsgi_app = FencedWSGI(app.wsgi_app, guard)   # Flask, Django (WSGI)

Clients send the header with `fencing(lease)`:

    httpx.put(url, headers=fencing(lease))
    requests.put(url, headers=fencing(lease))
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from lockfast.errors import InvalidNameError, LockfastError, StaleTokenError, UnsupportedError
from lockfast.guards.admission import Guard, InvalidTokenError

HEADER: Final = "Fencing-Token"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
HEADER_MAX: Final = 4096

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
StartResponse = Callable[..., Any]
WSGIApp = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class Held(Protocol):
    """What `fencing` needs from a lease."""

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> int: ...


def fencing(*leases: Held) -> dict[str, str]:
    """Return the headers that present a lease to a guarded service."""
    return {HEADER: ", ".join(f"{quote(lease.name, safe='/')}={lease.token}" for lease in leases)}


class _Refused(Exception):
    def __init__(self, status: int, title: str, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.status = status
        self.document = {"title": title, "status": status, "detail": detail, **members}

    def body(self) -> bytes:
        return json.dumps(self.document).encode()


class Fence:
    """Decides on the header of a request; shared by both middlewares."""

    def __init__(
        self, guard: Guard, *, required: bool = True, shared_when_safe: bool = True
    ) -> None:
        self._guard = guard
        self._required = required
        self._shared_when_safe = shared_when_safe

    def admit(self, method: str, values: list[str]) -> None:
        """Raise _Refused unless every token in the header is admitted."""
        is_safe = method in SAFE_METHODS
        if not values:
            if self._required and not is_safe:
                raise _Refused(428, "A fencing token is required", f"send {HEADER}: name=token")
            return
        for name, token in _parse(",".join(values)):
            try:
                self._guard.admit(name, token, shared=is_safe and self._shared_when_safe)
            except StaleTokenError as error:
                raise _Refused(
                    412, "The token is stale", str(error), name=name, token=token, newer=error.floor
                ) from None
            except (InvalidNameError, InvalidTokenError) as error:
                raise _malformed(str(error)) from None
            except UnsupportedError as error:
                raise _Refused(501, "The guard cannot do this", str(error)) from None
            except LockfastError as error:
                # If the guard cannot answer, refuse.
                raise _Refused(503, "The guard cannot decide", str(error)) from None


def _parse(text: str) -> list[tuple[str, int]]:
    found = []
    if len(text) > HEADER_MAX:
        raise _malformed("it is too long")
    for part in text.split(","):
        name, equals, token = part.strip().rpartition("=")
        if not equals or not (token.isascii() and token.isdigit() and len(token) < 17):
            raise _malformed(f"write {HEADER}: name=17")
        try:
            found.append((unquote(name, errors="strict"), int(token)))
        except UnicodeDecodeError:
            raise _malformed("the name is not UTF-8") from None
    return found


def _malformed(detail: str) -> _Refused:
    return _Refused(400, f"The header {HEADER} is malformed", detail)


_MEDIA: Final = "application/problem+json"


class FencedASGI:
    """ASGI middleware. `run` moves a guard that blocks to a thread: `asyncio.to_thread`."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        *,
        required: bool = True,
        run: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        self._app = app
        self._fence = Fence(guard, required=required)
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        values = [
            value.decode("latin-1")
            for name, value in scope["headers"]
            if name.lower() == HEADER.lower().encode()
        ]
        try:
            if self._run is None:
                self._fence.admit(scope["method"], values)
            else:
                await self._run(self._fence.admit, scope["method"], values)
        except _Refused as refused:
            body = refused.body()
            headers = [
                (b"content-type", _MEDIA.encode()),
                (b"content-length", str(len(body)).encode()),
            ]
            await send(
                {"type": "http.response.start", "status": refused.status, "headers": headers}
            )
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)


class FencedWSGI:
    """WSGI middleware."""

    def __init__(self, app: WSGIApp, guard: Guard, *, required: bool = True) -> None:
        self._app = app
        self._fence = Fence(guard, required=required)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        value = environ.get("HTTP_FENCING_TOKEN")
        try:
            self._fence.admit(environ["REQUEST_METHOD"], [] if value is None else [value])
        except _Refused as refused:
            body = refused.body()
            headers = [("Content-Type", _MEDIA), ("Content-Length", str(len(body)))]
            start_response(f"{refused.status} {refused.document['title']}", headers)
            return [body]
        return self._app(environ, start_response)
