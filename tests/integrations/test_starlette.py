"""Locks in FastAPI and Starlette: refusals, waiting, disconnects, losses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import lockfast
from lockfast import aio
from lockfast.integrations.starlette import Locked, lifespan

pytestmark = pytest.mark.usefixtures("each_loop")


class Site:
    """An application whose handler reports when it runs and ends when told to."""

    def __init__(self, url: str, **options: Any) -> None:
        self.running = asyncio.Event()
        self.finish = asyncio.Event()
        self.tokens: list[int] = []
        self.cancelled = False
        self.app = FastAPI(lifespan=lifespan(url, ttl=5))
        locked = Depends(Locked("order:{order_id}", **options), scope="function")

        async def order(order_id: str, lease: aio.Lease = locked) -> dict[str, int]:
            self.tokens.append(lease.token)
            self.running.set()
            try:
                await self.finish.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return {"token": lease.token}

        self.app.post("/orders/{order_id}")(order)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app)
        async with self.app.router.lifespan_context(self.app):
            async with httpx.AsyncClient(transport=transport, base_url="http://site") as http:
                yield http


def play(story: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def test_a_request_that_may_wait_outlasts_a_short_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first attempt does not wait, and the failure of that one was a 503 at once."""
    failed: list[str] = []

    async def try_acquire(self: aio.Lock) -> None:
        failed.append(self.name)
        raise lockfast.StoreUnavailableError("memory://", "connection refused")

    monkeypatch.setattr(aio.Lock, "try_acquire", try_acquire)

    async def story() -> None:
        for timeout, status in ((0, 503), (60, 200)):
            site = Site("memory://", timeout=timeout)
            site.finish.set()
            async with site.open() as http:
                assert (await http.post("/orders/42")).status_code == status
        assert len(failed) == 2

    play(story)


def test_a_held_lock_is_a_409_with_retry_after() -> None:
    async def story() -> None:
        site = Site("memory://", retry_after=7)
        async with site.open() as http:
            first = asyncio.create_task(http.post("/orders/42"))
            await site.running.wait()
            refused = await http.post("/orders/42")
            assert refused.status_code == 409
            assert refused.headers["Retry-After"] == "7"
            assert refused.json() == {"detail": "'order:42' is in use; try again later"}
            other = asyncio.create_task(http.post("/orders/43"))
            while len(site.tokens) < 2:
                await asyncio.sleep(0)
            site.finish.set()
            assert (await first).status_code == (await other).status_code == 200
            assert (await http.post("/orders/42")).status_code == 200
        assert site.tokens == sorted(site.tokens)

    play(story)


def test_a_request_with_a_timeout_waits_for_its_turn() -> None:
    async def story() -> None:
        site = Site("memory://", timeout=50)
        async with site.open() as http:
            client: aio.Client = site.app.state.lockfast
            requests = [asyncio.create_task(http.post("/orders/42", json={"n": n})) for n in "ab"]
            await site.running.wait()
            while not (await client.inspect("order:42")).waiting_count:
                await asyncio.sleep(0)
            site.finish.set()
            tokens = [(await request).json()["token"] for request in requests]
        assert len(set(tokens)) == 2

    play(story)


def test_a_client_that_disconnects_leaves_the_queue() -> None:
    """As a server does it: the disconnect is a message, not a cancellation."""

    async def story() -> None:
        site = Site("memory://", timeout=50)
        async with site.open():
            client: aio.Client = site.app.state.lockfast
            async with client.lock("order:42"):
                messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
                sent: list[Any] = []
                await messages.put({"type": "http.request", "body": b"", "more_body": False})
                scope = {
                    "type": "http",
                    "method": "POST",
                    "path": "/orders/42",
                    "headers": [],
                    "query_string": b"",
                    "app": site.app,
                }

                async def send(message: Any) -> None:
                    sent.append(message)

                request = asyncio.create_task(site.app(scope, messages.get, send))
                while not (await client.inspect("order:42")).waiting_count:
                    await asyncio.sleep(0)
                await messages.put({"type": "http.disconnect"})
                await request
                assert sent[0]["status"] == 499
                while (await client.inspect("order:42")).waiting_count:
                    await asyncio.sleep(0)
        assert site.tokens == []

    play(story)


def test_a_lost_lease_cancels_the_handler_and_is_a_503() -> None:
    async def story() -> None:
        site = Site("memory://")
        async with site.open() as http:
            request = asyncio.create_task(http.post("/orders/42"))
            await site.running.wait()
            await site.app.state.lockfast.revoke("order:42", reason="test")
            response = await request
            assert response.status_code == 503
            assert response.json() == {"detail": "'order:42' was lost"}
        assert site.cancelled

    play(story)


def test_plain_starlette_holds_by_a_block() -> None:
    async def view(request: Request) -> PlainTextResponse:
        async with Locked("order:{order_id}").hold(request) as lease:
            return PlainTextResponse(f"{lease.name} {(await request.body()).decode()}")

    async def story() -> None:
        app = Starlette(
            routes=[Route("/orders/{order_id}", view, methods=["POST"])],
            lifespan=lifespan("memory://"),
        )
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://site") as http:
                assert (await http.post("/orders/a:b", content=b"body")).text == "order:a:b body"

    play(story)


def test_without_a_lifespan_the_error_says_what_is_missing() -> None:
    async def story() -> None:
        site = Site("memory://")
        transport = httpx.ASGITransport(site.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://site") as http:
            with pytest.raises(RuntimeError, match=r"app\.state\.lockfast has no client"):
                await http.post("/orders/42")

    play(story)


def test_a_field_that_the_route_lacks_is_named() -> None:
    async def story() -> None:
        app = FastAPI(lifespan=lifespan("memory://"))

        @app.get("/orders", dependencies=[Depends(Locked("order:{order_id}"))])
        async def orders() -> None: ...

        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=transport, base_url="http://site") as http:
                with pytest.raises(RuntimeError, match=r"\{order_id\} in .* is not a path param"):
                    await http.get("/orders")

    play(story)


def test_a_bad_template_is_refused_when_the_route_is_declared() -> None:
    with pytest.raises(lockfast.InvalidNameError, match="separator"):
        Locked("{a}{b}")
