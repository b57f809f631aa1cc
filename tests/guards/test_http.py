"""The guard in front of an HTTP service: a stale holder's request never reaches the handler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import flask
import httpx
import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import lockfast
from lockfast.errors import UnsupportedError
from lockfast.guards import AsyncRedisGuard, FileGuard, MemoryGuard, RedisGuard
from lockfast.guards.http import FencedASGI, FencedWSGI, fencing


class Service:
    """One guarded service behind either interface."""

    def __init__(self, kind: str, guard: Any) -> None:
        self.handled: list[str] = []
        self._kind = kind
        if kind == "asgi":

            async def handle(request: Request) -> PlainTextResponse:
                self.handled.append(request.method)
                return PlainTextResponse("done")

            app = Starlette(routes=[Route("/", handle, methods=["GET", "PUT"])])
            self._asgi = FencedASGI(app, guard)
        else:
            made = flask.Flask("service")

            @made.route("/", methods=["GET", "PUT"])
            def handle_wsgi() -> str:
                self.handled.append(flask.request.method)
                return "done"

            self._wsgi = FencedWSGI(made.wsgi_app, guard)

    def send(self, method: str, headers: dict[str, str]) -> httpx.Response:
        if self._kind == "wsgi":
            transport = httpx.WSGITransport(app=self._wsgi)
            with httpx.Client(transport=transport, base_url="http://service") as client:
                return client.request(method, "/", headers=headers)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._asgi)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await client.request(method, "/", headers=headers)

        return asyncio.run(ask())


@pytest.fixture(params=["asgi", "wsgi"])
def service(request: pytest.FixtureRequest) -> Service:
    return Service(request.param, MemoryGuard())


def test_a_stale_holder_is_refused_before_the_handler(service: Service) -> None:
    with lockfast.connect("memory://http-guard") as client:
        lock = client.lock("orders/42")
        old = lock.acquire()
        stale = fencing(old)
        assert service.send("PUT", stale).status_code == 200
        old.release()
        new = lock.acquire()
        assert service.send("PUT", fencing(new)).status_code == 200
        refused = service.send("PUT", stale)
        assert refused.status_code == 412
        assert refused.json()["newer"] == new.token
        assert service.handled == ["PUT", "PUT"]
        new.release()


def test_a_write_without_a_token_is_refused(service: Service) -> None:
    assert service.send("PUT", {}).status_code == 428
    assert service.send("GET", {}).status_code == 200
    assert service.handled == ["GET"]


@pytest.mark.parametrize("value", ["", "17", "a=", "a=x", "a=-1", "a//b=1", "a=1,", "%ff=1", "=1"])
def test_a_malformed_header_is_refused(service: Service, value: str) -> None:
    assert service.send("PUT", {"Fencing-Token": value}).status_code == 400
    assert service.handled == []


def test_names_are_quoted() -> None:
    class Lease:
        names = ("a=b, c/ü",)
        token = 7

    headers = fencing(Lease())
    assert headers == {"Fencing-Token": "a%3Db%2C%20c/%C3%BC=7"}
    service = Service("asgi", guard := MemoryGuard())
    assert service.send("PUT", headers).status_code == 200
    assert guard.floor("a=b, c/ü") == 7


def test_a_guard_that_cannot_decide_lets_nothing_pass(service: Service) -> None:
    class Broken(MemoryGuard):
        def admit(self, *args: Any, **options: Any) -> None:
            raise lockfast.StoreUnavailableError("guard", "is down")

    for kind in ("asgi", "wsgi"):
        broken = Service(kind, Broken())
        assert broken.send("PUT", {"Fencing-Token": "a=1"}).status_code == 503
        assert broken.handled == []


class AsyncMemoryGuard:
    """A guard for asyncio that waits before it answers."""

    def __init__(self) -> None:
        self.guard = MemoryGuard()

    async def admit(
        self, resource: str, token: int, *, shared: bool = False, once: bool = False
    ) -> None:
        await asyncio.sleep(0)
        self.guard.admit(resource, token, shared=shared, once=once)


def test_a_guard_for_asyncio_is_awaited() -> None:
    """It was called and not awaited, so that every request passed."""
    service = Service("asgi", AsyncMemoryGuard())
    assert service.send("PUT", {"Fencing-Token": "a=2"}).status_code == 200
    assert service.send("PUT", {"Fencing-Token": "a=1"}).status_code == 412
    assert service.send("GET", {"Fencing-Token": "a=1"}).status_code == 412
    assert service.send("PUT", {}).status_code == 428
    assert service.handled == ["PUT"]


def test_a_guard_that_cannot_serve_is_refused_at_once(tmp_path: Path) -> None:
    async def app(*_: Any) -> None: ...

    with pytest.raises(UnsupportedError, match="every request would pass"):
        Service("wsgi", AsyncMemoryGuard())
    with pytest.raises(UnsupportedError, match="leave run= out"):
        FencedASGI(app, AsyncMemoryGuard(), run=asyncio.to_thread)
    for kind in ("asgi", "wsgi"):
        with pytest.raises(UnsupportedError, match=r"has no admit\(\)"):
            Service(kind, FileGuard(tmp_path / "a"))


def test_a_guard_whose_server_is_down_lets_nothing_pass(caplog: pytest.LogCaptureFixture) -> None:
    """A RedisGuard raises errors of redis-py; they ended in a response with status 500."""
    path = "/nowhere/redis.sock"
    closed = redis.Redis(unix_socket_path=path, retry=Retry(NoBackoff(), 0))
    closed_async = redis.asyncio.Redis(unix_socket_path=path, retry=AsyncRetry(NoBackoff(), 0))
    for service in (
        Service("wsgi", RedisGuard(closed)),
        Service("asgi", RedisGuard(closed)),
        Service("asgi", AsyncRedisGuard(closed_async)),
    ):
        caplog.clear()
        refused = service.send("PUT", {"Fencing-Token": "a=1"})
        assert refused.status_code == 503
        assert refused.json()["detail"] == "the guard failed with ConnectionError"
        assert path in caplog.text
        assert service.handled == []


def test_a_lease_on_several_locks_is_checked_at_each() -> None:
    """The header had one entry, for the name `a, b`, at which nobody else is ever admitted."""
    service = Service("wsgi", guard := MemoryGuard())
    with lockfast.connect("memory://http-several") as client:
        with client.all("a", "b") as lease:
            headers = fencing(lease)
            assert service.send("PUT", headers).status_code == 200
        assert guard.floor("a") == guard.floor("b") == lease.token
        with client.lock("b") as later:
            assert service.send("PUT", fencing(later)).status_code == 200
        assert service.send("PUT", headers).status_code == 412
        with client.tree("x/y").write() as branch:
            assert fencing(branch) == {"Fencing-Token": f"x/y={branch.token}"}
