"""Locks in Flask: one client per application, one lease per request."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from flask import Flask, Response, abort, current_app, g, request

import lockfast
from lockfast.api.settings import Seconds
from lockfast.api.template import Template
from lockfast.errors import AcquireTimeoutError, LeaseLostError, StoreError

F = TypeVar("F", bound=Callable[..., Any])

EXTENSION = "lockfast"


class Lockfast:
    """The extension. Its settings are LOCKFAST_URL and LOCKFAST_TTL in the application's config.

    The client connects on first use, so a server may fork after the application was created.
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._mutex = threading.Lock()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Set the defaults of the settings; several applications may share the extension."""
        app.config.setdefault("LOCKFAST_URL", None)
        app.config.setdefault("LOCKFAST_TTL", None)
        app.extensions[EXTENSION] = None

    @property
    def client(self) -> lockfast.Client:
        """The client of the current application."""
        with self._mutex:
            client = current_app.extensions.get(EXTENSION)
            if not isinstance(client, lockfast.Client):
                config = current_app.config
                client = lockfast.connect(
                    config.get("LOCKFAST_URL"), ttl=config.get("LOCKFAST_TTL")
                )
                current_app.extensions[EXTENSION] = client
            return client

    def locked(
        self,
        name: str,
        *,
        timeout: Seconds = 0,
        ttl: Seconds | None = None,
        priority: int = 0,
        retry_after: int = 1,
    ) -> Callable[[F], F]:
        """Decorate a view so that it holds a lock; respond 409 with Retry-After if it is taken.

        Fields in braces are arguments of the route. `timeout` is how long a request may wait;
        a waiting request occupies a worker. The view finds its lease in `flask.g.lease`. A view
        whose lease is lost is not interrupted; its response is replaced by 503.
        """
        template = Template(name)
        headers = {"Retry-After": str(retry_after)}

        def refuse(status: int, text: str) -> Response:
            return Response(f"{text}\n", status, headers, content_type="text/plain; charset=utf-8")

        def decorate(view: F) -> F:
            @functools.wraps(view)
            def locked_view(*args: Any, **kwargs: Any) -> Any:
                key = template.name(_values(template, name))
                lock = self.client.lock(key, ttl=ttl, priority=priority)
                try:
                    with lock.acquire(timeout=timeout) as g.lease:
                        return view(*args, **kwargs)
                except AcquireTimeoutError:
                    # Omit the holder's label: it is for operators, not for the public.
                    abort(refuse(409, f"{key!r} is in use; try again later"))
                except LeaseLostError:
                    current_app.logger.exception("the lease of a request was lost")
                    abort(refuse(503, f"{key!r} was lost"))
                except StoreError:
                    current_app.logger.exception("the lock store failed")
                    abort(refuse(503, "the lock store failed"))

            return locked_view  # type: ignore[return-value]

        return decorate


def _values(template: Template, name: str) -> dict[str, Any]:
    values = request.view_args or {}
    for field in template.fields:
        if field not in values:
            raise RuntimeError(f"{{{field}}} in {name!r} is not an argument of {request.url_rule}")
    return values
