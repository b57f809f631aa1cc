"""Call both APIs in the same way, as asyncio code does.

Tests are written once, as `async def`. They use the asyncio API directly; the blocking API is
wrapped so that its methods can be awaited, and block instead of suspending.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Protocol

from lockfast.api import blocking
from lockfast.api.settings import Seconds
from lockfast.flow.admin import LockInfo, SessionInfo, WatchEvent
from lockfast.flow.holding import LeaseState
from lockfast.runtimes.threads import run

Job = Callable[..., Coroutine[Any, Any, Any]]


class Lost(Protocol):
    def is_set(self) -> bool: ...
    async def wait(self, timeout: Seconds | None = None) -> bool: ...


class Lease(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def token(self) -> int: ...
    @property
    def session(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    @property
    def remaining(self) -> float: ...
    @property
    def state(self) -> LeaseState: ...
    @property
    def lost(self) -> Lost: ...
    def check(self) -> None: ...
    def on_lost(self, callback: Callable[[Any], None]) -> None: ...
    async def release(self) -> None: ...
    async def __aenter__(self) -> Lease: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Lock(Protocol):
    @property
    def name(self) -> str: ...
    async def acquire(self, *, timeout: Seconds | None = None) -> Lease: ...
    async def try_acquire(self) -> Lease | None: ...
    async def __aenter__(self) -> Lease: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __call__(self, function: Job, /) -> Job: ...


class Watch(Protocol):
    @property
    def position(self) -> int | None: ...
    def __aiter__(self) -> AsyncIterator[WatchEvent]: ...
    async def __anext__(self) -> WatchEvent: ...
    def close(self) -> None: ...


class Client(Protocol):
    @property
    def url(self) -> str: ...
    @property
    def owner(self) -> str: ...
    def lock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
    ) -> Lock: ...
    async def inspect(self, name: str, *, kind: str = "lock") -> LockInfo: ...
    async def list(self, prefix: str = "", *, kind: str = "lock") -> builtins.list[LockInfo]: ...
    async def sessions(self) -> builtins.list[SessionInfo]: ...
    def watch(
        self, prefix: str = "", *, kind: str | None = "lock", after: int | None = None
    ) -> Watch: ...
    async def revoke(
        self,
        name: str | None = None,
        *,
        session: str | None = None,
        reason: str,
        kind: str = "lock",
    ) -> int: ...
    async def close(self) -> None: ...


# ── the blocking API, wrapped in awaitable methods ───────────────────────────────────


class _Lost:
    def __init__(self, lost: blocking.Lost) -> None:
        self._lost = lost

    def is_set(self) -> bool:
        return self._lost.is_set()

    async def wait(self, timeout: Seconds | None = None) -> bool:
        return self._lost.wait(timeout)


class _Lease:
    def __init__(self, lease: blocking.Lease) -> None:
        self._lease = lease

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def token(self) -> int:
        return self._lease.token

    @property
    def session(self) -> str:
        return self._lease.session

    @property
    def owner(self) -> str:
        return self._lease.owner

    @property
    def deadline(self) -> float:
        return self._lease.deadline

    @property
    def remaining(self) -> float:
        return self._lease.remaining

    @property
    def state(self) -> LeaseState:
        return self._lease.state

    @property
    def lost(self) -> Lost:
        return _Lost(self._lease.lost)

    def check(self) -> None:
        self._lease.check()

    def on_lost(self, callback: Callable[[Any], None]) -> None:
        self._lease.on_lost(lambda _: callback(self))

    async def release(self) -> None:
        self._lease.release()

    async def __aenter__(self) -> Lease:
        self._lease.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lease.__exit__(kind, error, trace)


class _Lock:
    def __init__(self, lock: blocking.Lock) -> None:
        self._lock = lock

    @property
    def name(self) -> str:
        return self._lock.name

    async def acquire(self, *, timeout: Seconds | None = None) -> Lease:
        return _Lease(self._lock.acquire(timeout=timeout))

    async def try_acquire(self) -> Lease | None:
        lease = self._lock.try_acquire()
        return None if lease is None else _Lease(lease)

    async def __aenter__(self) -> Lease:
        return _Lease(self._lock.__enter__())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def __call__(self, function: Job, /) -> Job:
        @functools.wraps(function)
        def blocks(*args: Any, **kwargs: Any) -> Any:
            return run(function(*args, **kwargs))

        locked = self._lock(blocks)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return locked(*args, **kwargs)

        return awaited


class _Watch:
    def __init__(self, watch: blocking.Watch) -> None:
        self._watch = watch

    @property
    def position(self) -> int | None:
        return self._watch.position

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        try:
            return next(self._watch)
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        self._watch.close()


class BlockingClient:
    """A client of the blocking API with awaitable methods."""

    def __init__(self, client: blocking.Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def owner(self) -> str:
        return self._client.owner

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
    ) -> Lock:
        return _Lock(
            self._client.lock(
                name, ttl=ttl, priority=priority, reentrant=reentrant, max_hold=max_hold
            )
        )

    async def inspect(self, name: str, *, kind: str = "lock") -> LockInfo:
        return self._client.inspect(name, kind=kind)

    async def list(self, prefix: str = "", *, kind: str = "lock") -> builtins.list[LockInfo]:
        return self._client.list(prefix, kind=kind)

    async def sessions(self) -> builtins.list[SessionInfo]:
        return self._client.sessions()

    def watch(
        self, prefix: str = "", *, kind: str | None = "lock", after: int | None = None
    ) -> Watch:
        return _Watch(self._client.watch(prefix, kind=kind, after=after))

    async def revoke(
        self,
        name: str | None = None,
        *,
        session: str | None = None,
        reason: str,
        kind: str = "lock",
    ) -> int:
        return self._client.revoke(name, session=session, reason=reason, kind=kind)

    async def close(self) -> None:
        self._client.close()
