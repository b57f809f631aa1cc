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
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from lockfast.errors import InvalidNameError, LockfastError, StaleTokenError, UnsupportedError
from lockfast.guards.admission import Guard, InvalidTokenError

logger = logging.getLogger(__name__)

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
    def names(self) -> Sequence[str]: ...
    @property
    def token(self) -> int: ...


class AsyncGuard(Protocol):
    """A guard for asyncio, such as AsyncRedisGuard."""

    async def admit(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> None: ...


def fencing(*leases: Held) -> dict[str, str]:
    """Return the headers that present leases to a guarded service: each of their locks by name."""
    pairs = [(name, lease.token) for lease in leases for name in lease.names]
    return {HEADER: ", ".join(f"{quote(name, safe='/')}={token}" for name, token in pairs)}


class _Refused(Exception):
    def __init__(self, status: int, title: str, detail: str, **members: object) -> None:
        super().__init__(detail)
        self.status = status
        self.document = {"title": title, "status": status, "detail": detail, **members}

    def body(self) -> bytes:
        return json.dumps(self.document).encode()


class Fence:
    """Decides on the header of a request; shared by both middlewares."""

    def __init__(self, guard: Any, *, required: bool = True, shared_when_safe: bool = True) -> None:
        if not hasattr(guard, "admit"):
            raise UnsupportedError(
                f"{type(guard).__name__} before an HTTP service",
                "it has no admit()",
                "let the handler use it, or choose RedisGuard, EtcdGuard or ZooKeeperGuard",
            )
        self._guard = guard
        self._required = required
        self._shared_when_safe = shared_when_safe
        self.must_be_awaited = iscoroutinefunction(guard.admit)

    def admit(self, method: str, values: list[str]) -> None:
        """Raise _Refused unless every token in the header is admitted."""
        for name, token, shared in self._asked(method, values):
            with _refusals(name, token):
                self._guard.admit(name, token, shared=shared)

    async def admit_async(self, method: str, values: list[str]) -> None:
        """As `admit`, for a guard that must be awaited."""
        for name, token, shared in self._asked(method, values):
            with _refusals(name, token):
                await self._guard.admit(name, token, shared=shared)

    def _asked(self, method: str, values: list[str]) -> list[tuple[str, int, bool]]:
        """Return the tokens to admit; raise _Refused if they are missing or malformed."""
        is_safe = method in SAFE_METHODS
        if not values:
            if self._required and not is_safe:
                raise _Refused(428, "A fencing token is required", f"send {HEADER}: name=token")
            return []
        shared = is_safe and self._shared_when_safe
        return [(name, token, shared) for name, token in _parse(",".join(values))]


@contextmanager
def _refusals(name: str, token: int) -> Iterator[None]:
    """Translate the errors of a guard into responses. A guard that fails lets nothing pass."""
    try:
        yield
    except StaleTokenError as error:
        raise _Refused(
            412, "The token is stale", str(error), name=name, token=token, newer=error.floor
        ) from None
    except (InvalidNameError, InvalidTokenError) as error:
        raise _malformed(str(error)) from None
    except UnsupportedError as error:
        raise _Refused(501, "The guard cannot do this", str(error)) from None
    except LockfastError as error:
        raise _Refused(503, "The guard cannot decide", str(error)) from None
    except Exception as error:
        # An error of the guard's client, such as redis.ConnectionError. Its text is for the log.
        logger.warning("the guard of %r failed; request refused with 503", name, exc_info=True)
        what = f"the guard failed with {type(error).__name__}"
        raise _Refused(503, "The guard cannot decide", what) from None


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
    """ASGI middleware, for a guard of either kind.

    AsyncRedisGuard is awaited. `run` moves a guard that blocks to a thread: `asyncio.to_thread`.
    """

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard | AsyncGuard,
        *,
        required: bool = True,
        run: Callable[..., Awaitable[None]] | None = None,
    ) -> None:
        self._app = app
        self._fence = Fence(guard, required=required)
        self._run = run
        if run is not None and self._fence.must_be_awaited:
            raise UnsupportedError(
                f"run= with {type(guard).__name__}", "this guard does not block", "leave run= out"
            )

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
            if self._fence.must_be_awaited:
                await self._fence.admit_async(scope["method"], values)
            elif self._run is None:
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
        if self._fence.must_be_awaited:
            raise UnsupportedError(
                f"FencedWSGI with {type(guard).__name__}",
                "nothing awaits its answer, so every request would pass",
                "use a guard for blocking programs",
            )

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
