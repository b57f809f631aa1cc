"""What is refused before a request is read, and the headers of every response.

A browser must not reach the API from another site or with another user's credentials: the Host must
be one of ours (against DNS rebinding), a request that changes something must not come from another
origin, and its body must be JSON, which no HTML form can send. There is no CORS.

The content security policy of responses forbids all content; the dashboard page has `PAGE_POLICY`,
which allows its own scripts and styles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lockfast.server.problems import (
    CROSS_ORIGIN,
    MEDIA,
    MISDIRECTED,
    TOO_LARGE,
    Problem,
)
from lockfast.stores.lockserver.routes import BODY_MAX
from lockfast.stores.quorum.json_codec import PATHS, REQUEST_MAX
from lockfast.stores.quorum.messages import Sync

CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
API_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"
PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
LARGER_BODIES: Final = {PATHS[Sync]: REQUEST_MAX}
"""The paths whose bodies may be larger than BODY_MAX; they are read after authentication."""
LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")


class Border:
    """ASGI middleware that checks requests and adds headers to responses."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        on_refusal: Callable[[Scope, Problem], None],
        *,
        insecure: bool = False,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._on_refusal = on_refusal
        self._insecure = insecure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers.setdefault("cache-control", "no-store")
                headers.setdefault("content-security-policy", API_POLICY)
                headers["referrer-policy"] = "no-referrer"
                if self._insecure:
                    headers["lockfast-insecure"] = "anyone can use this server (--insecure-dev)"
            await send(message)

        try:
            self._check(scope)
        except Problem as problem:
            self._on_refusal(scope, problem)
            await problem.response()(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        name = host.rpartition(":")[0] if _has_port(host) else host
        if not {host, name} & self._hosts:
            raise Problem(
                421, MISDIRECTED, "its operator lists the names it serves: hosts in [server]"
            )
        length = headers.get("content-length", "0")
        bytes_max = LARGER_BODIES.get(scope["path"], BODY_MAX)
        if not length.isdigit() or int(length) > bytes_max:
            raise Problem(413, TOO_LARGE, f"a body has at most {bytes_max} bytes")
        if scope["method"] not in CHANGING:
            return
        origin = headers.get("origin")
        # A proxy in front may use TLS with the browser and plain HTTP with us.
        own_origins = (f"{scope['scheme']}://{host}", f"https://{host}")
        if origin is not None and origin.lower() not in own_origins:
            raise Problem(403, CROSS_ORIGIN)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise Problem(403, CROSS_ORIGIN)
        has_body = length != "0" or "transfer-encoding" in headers
        media = headers.get("content-type", "").partition(";")[0].strip().lower()
        if has_body and media != "application/json":
            raise Problem(415, MEDIA)


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")
