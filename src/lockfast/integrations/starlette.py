"""Locks in Starlette and FastAPI: one client per application, one lease per request."""

# FastAPI reads the annotations of `Locked.__call__` when a route is declared, so they must be real
# types here, not strings.

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request

from lockfast import aio
from lockfast.api.settings import Seconds
from lockfast.api.template import Template
from lockfast.errors import (
    AcquireTimeoutError,
    LeaseLostError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
)

CLIENT_CLOSED_REQUEST = 499
"""The status that nginx logs when a client leaves before the response; no client receives it."""


def lifespan(
    url: str | None = None, **options: Any
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return a lifespan that keeps a client in `app.state.lockfast` while the application runs.

    Takes the arguments of `lockfast.aio.connect`. In a lifespan of your own, write
    `app.state.lockfast = client` inside `async with lockfast.aio.connect(…) as client`.
    """

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        async with aio.connect(url, **options) as client:
            app.state.lockfast = client
            yield

    return run


class Locked:
    """Hold a lock while a request is handled; respond 409 with Retry-After if it is taken.

    In FastAPI it is a dependency: `Depends(Locked("order:{order_id}"), scope="function")`
    gives the handler the lease. In Starlette: `async with Locked(…).hold(request) as lease`.
    Fields in braces are path parameters of the route.

    `timeout` is how long a request may wait for the lock. A client that disconnects while its
    request waits leaves the queue. If the lease is lost, the handler is cancelled, and the
    response is 503, like that of an unreachable store.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout: Seconds = 0,
        ttl: Seconds | None = None,
        priority: int = 0,
        retry_after: int = 1,
    ) -> None:
        self._name = Template(name)
        self._timeout = timeout
        self._ttl = ttl
        self._priority = priority
        self._retry = {"Retry-After": str(retry_after)}

    async def __call__(self, request: Request) -> AsyncGenerator[aio.Lease]:
        async with self.hold(request) as lease:
            yield lease

    @asynccontextmanager
    async def hold(self, request: Request) -> AsyncIterator[aio.Lease]:
        """Hold the lock of this request for the length of the block."""
        lock = self._lock(request)
        try:
            lease = await self._try(lock)
            if lease is None:
                lease = await self._wait(lock, request)
            async with lease:
                yield lease
        except AcquireTimeoutError:
            # Omit the holder's label: it is for operators, not for the public.
            detail = f"{lock.name!r} is in use; try again later"
            raise HTTPException(409, detail, headers=self._retry) from None
        except LeaseLostError as error:
            raise HTTPException(503, f"{lock.name!r} was lost", headers=self._retry) from error
        except StoreError as error:
            raise HTTPException(503, "the lock store failed", headers=self._retry) from error

    def _lock(self, request: Request) -> aio.Lock:
        client = getattr(request.app.state, "lockfast", None)
        if not isinstance(client, aio.Client):
            raise RuntimeError(
                "app.state.lockfast has no client: create the application with "
                "lifespan=lockfast.integrations.starlette.lifespan(…)"
            )
        missing = [field for field in self._name.fields if field not in request.path_params]
        if missing:
            raise RuntimeError(
                f"{{{missing[0]}}} in {self._name.text!r} is not a path parameter of "
                f"{request.url.path}"
            )
        name = self._name.name(request.path_params)
        return client.lock(name, ttl=self._ttl, priority=self._priority)

    async def _try(self, lock: aio.Lock) -> aio.Lease | None:
        try:
            return await lock.try_acquire()
        except (StoreUnavailableError, OutcomeUnknownError):
            if not self._timeout:
                raise
            return None  # a request that may wait tries again, as `acquire` does

    async def _wait(self, lock: aio.Lock, request: Request) -> aio.Lease:
        if not self._timeout:
            raise AcquireTimeoutError(lock.name, 0.0)
        task = asyncio.current_task()
        assert task is not None
        gone = False

        async def leave_when_gone() -> None:
            nonlocal gone
            await _disconnected(request)
            gone = True
            task.cancel()

        watcher = asyncio.create_task(leave_when_gone())
        try:
            return await lock.acquire(timeout=self._timeout)
        except asyncio.CancelledError:
            # A cancellation from outside takes precedence over ours.
            if gone and task.uncancel() == 0:
                raise HTTPException(CLIENT_CLOSED_REQUEST) from None
            raise
        finally:
            watcher.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    try:
        await request.body()  # keeps the body for the handler; what follows is the disconnect
    except RuntimeError:
        pass  # the framework has parsed it as a form already
    while (await request.receive())["type"] != "http.disconnect":
        pass
