"""`connect` and the client. The counterpart of `blocking.client`."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lockfast.api import settings
from lockfast.api.aio.groups import Election, Once, Party
from lockfast.api.aio.recipes import Lock, RWLock, Semaphore, Tree
from lockfast.api.default_client import DefaultClient
from lockfast.api.factory import RecipeFactory
from lockfast.api.settings import Seconds
from lockfast.core.names import check_name, check_prefix
from lockfast.flow import admin, deadlock
from lockfast.flow.admin import DeadlockInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.flow.client import Core, ping
from lockfast.flow.watch import Watcher
from lockfast.runtimes.aio import AsyncioRuntime, is_running, refuse_other_loops

if TYPE_CHECKING:
    from lockfast.events import Observer
    from lockfast.flow.wait_graph import WaitGraph


class Watch:
    """An iterator over the events of locks; it ends only when it is closed."""

    def __init__(self, core: Core, kind: str | None, prefix: str, after: int | None) -> None:
        self._watcher = Watcher(core, kind, prefix, after)

    @property
    def position(self) -> int | None:
        """The position of the last event read; pass it to `watch(after=…)` to continue."""
        return self._watcher.position

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self._watcher.next()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End the iteration. May be called from any thread."""
        self._watcher.close()


class Client(RecipeFactory[Lock, RWLock, Tree, Semaphore, Election, Party, Once]):
    """A connection to a store. The first acquire opens its session.

    `close()` releases everything the client holds, and so does the end of an `async with` block.
    """

    _lock_type = Lock
    _rwlock_type = RWLock
    _tree_type = Tree
    _semaphore_type = Semaphore
    _election_type = Election
    _party_type = Party
    _once_type = Once

    def __init__(
        self,
        url: object = None,
        *,
        password: Callable[[], str] | None = None,
        check: bool = False,
        ttl: Seconds | None = None,
        owner: str | None = None,
        metadata: str = "",
        connect_timeout: Seconds = 5.0,
        ageing_step: Seconds = 10.0,
        deadlock_after: Seconds = 1.0,
        death_watch: bool = True,
        debug: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        refuse_other_loops()
        in_loop = is_running()
        self._connect(
            url,
            "asyncio",
            AsyncioRuntime(),
            ttl=ttl,
            owner=owner,
            metadata=metadata,
            connect_timeout=connect_timeout,
            ageing_step=ageing_step,
            deadlock_after=deadlock_after,
            death_watch=death_watch,
            debug=debug,
            observers=observers,
            password=password,
            check=check and not in_loop,
        )
        # Created now, so that Python warns if it is never awaited.
        self._checking = self._check() if check and in_loop else None

    async def _check(self) -> None:
        try:
            await ping(self._core)
        except BaseException:
            await self.close()
            raise

    def __await__(self) -> Generator[Any, Any, Client]:
        """Return the client after the reply that `connect(check=True)` waits for."""
        checking, self._checking = self._checking, None
        if checking is not None:
            yield from checking.__await__()
        return self

    async def ping(self) -> float:
        """Ask the store for a reply; return how many seconds it took.

        Raises StoreUnavailableError after `connect_timeout`, and StoreMisconfiguredError if the
        store refuses us or is unsafe for locks.
        """
        return await ping(self._core)

    async def inspect(self, name: str, *, kind: str = "lock") -> LockInfo:
        """Return the holders of a lock, and the claims that wait for it."""
        return await admin.inspect(self._core, settings.check_kind(kind), check_name(name))

    async def list(self, prefix: str = "", *, kind: str = "lock") -> builtins.list[LockInfo]:
        """List the locks in use whose names begin with `prefix`, sorted by name."""
        return await admin.list_locks(self._core, settings.check_kind(kind), check_prefix(prefix))

    async def sessions(self) -> builtins.list[SessionInfo]:
        """List the sessions in this store, including those that ended recently."""
        return await admin.list_sessions(self._core)

    def watch(
        self, prefix: str = "", *, kind: str | None = "lock", after: int | None = None
    ) -> Watch:
        """Iterate over the events of locks whose names begin with `prefix`.

        Start after position `after`, or now if it is None. The store's log is bounded:
        if it no longer has the events after `after`, the iterator raises WatchGapError,
        which carries a snapshot to continue from.
        """
        if kind is not None:
            settings.check_kind(kind)
        return Watch(self._core, kind, check_prefix(prefix), settings.check_position(after))

    async def deadlocks(self) -> builtins.list[DeadlockInfo]:
        """Find the deadlocks in the whole store."""
        core = self._core
        cycles = await deadlock.all_deadlocks(core.request, core.runtime.now_ms)
        return [admin.deadlock_info(cycle) for cycle in cycles]

    async def wait_graph(self, prefix: str = "") -> WaitGraph:
        """Return who waits for whom, for locks of every kind whose names begin with `prefix`."""
        from lockfast.flow.wait_graph import wait_graph

        return await wait_graph(self._core.request, check_prefix(prefix))

    async def revoke(
        self,
        name: str | None = None,
        *,
        session: str | None = None,
        reason: str,
        kind: str = "lock",
    ) -> int:
        """Take a lock from its holders, or end a whole session. Return how many lost it.

        The holder's LeaseLostError names `by` and `reason`. Its program may continue to
        write until it notices the loss; only a guard refuses such writes.
        """
        settings.check_reason(reason)
        if (name is None) == (session is None):
            raise TypeError("revoke() takes exactly one of a lock name and session=…")
        settings.check_kind(kind)
        if session is not None:
            settings.check_text(session, "session", settings.SESSION_BYTES_MAX)
            return await admin.revoke_session(self._core, session, self.owner, reason)
        return await admin.revoke_lock(self._core, kind, check_name(name), self.owner, reason)

    async def close(self) -> None:
        """Release all leases and cancel all waiting claims. Takes a few seconds at most."""
        await self._core.close()
        self._close_observers()

    async def __aenter__(self) -> Client:
        return await self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def connect(
    url: object = None,
    *,
    password: Callable[[], str] | None = None,
    check: bool = False,
    ttl: Seconds | None = None,
    owner: str | None = None,
    metadata: str = "",
    connect_timeout: Seconds = 5.0,
    ageing_step: Seconds = 10.0,
    deadlock_after: Seconds = 1.0,
    death_watch: bool = True,
    debug: bool = False,
    observers: Sequence[Observer] = (),
) -> Client:
    """Create a client of the store at `url`.

    `url` defaults to `LOCKFAST_URL`, then to this user's lock file. It may also be a ready
    client (redis.Redis, a psycopg pool) whose settings are taken over. `password` is a function
    that is called for each new connection, so that passwords may change. With `check`, wait for
    a reply of the store and raise now if there is none: `await connect(…, check=True)`, or
    `async with`. `ttl` is the default TTL of its locks; it defaults to `LOCKFAST_TTL`, then to
    30 seconds. `owner` is the label that other clients see; it defaults to `LOCKFAST_OWNER`,
    then to host, pid and program.
    `metadata` is stored with the session for operators. `deadlock_after` is how long a claim
    waits before the client searches for a deadlock. Use `death_watch=False` if child
    processes continue the work when this process exits: its locks then last until the TTL
    expires. `debug` logs a warning when two locks are acquired in both orders.
    Each of `observers` is called with the events of this client; see `lockfast.observe`.
    """
    return Client(
        url,
        ttl=ttl,
        owner=owner,
        metadata=metadata,
        connect_timeout=connect_timeout,
        ageing_step=ageing_step,
        deadlock_after=deadlock_after,
        death_watch=death_watch,
        debug=debug,
        observers=observers,
        password=password,
        check=check,
    )


_default: DefaultClient[Client] = DefaultClient(lambda: connect())


def default_client() -> Client:
    """Return the client of `lockfast.lock`, connecting it on first use."""
    return _default.get()


def lock(
    name: str,
    *,
    ttl: Seconds | None = None,
    priority: int = 0,
    reentrant: bool = False,
    max_hold: Seconds | None = None,
    lock_delay: Seconds | None = None,
    retain: bool = False,
    timeout: Seconds | None = None,
    renew: bool = True,
) -> Lock:
    """Create a lock in this user's lock file (or at `LOCKFAST_URL`); see `Client.lock`."""
    return default_client().lock(
        name,
        ttl=ttl,
        priority=priority,
        reentrant=reentrant,
        max_hold=max_hold,
        lock_delay=lock_delay,
        retain=retain,
        timeout=timeout,
        renew=renew,
    )
