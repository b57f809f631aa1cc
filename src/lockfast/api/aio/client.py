"""The client: where everything begins. The twin of `blocking.client`."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from types import TracebackType

from lockfast.api import settings
from lockfast.api.aio.groups import Election, Once, Party
from lockfast.api.aio.recipes import Lock, RWLock, Semaphore, Tree
from lockfast.api.base import ClientBase, joined_places, lock_places
from lockfast.api.settings import Seconds
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.names import check_name, check_prefix
from lockfast.flow import admin, deadlock
from lockfast.flow.admin import DeadlockInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.flow.client import Core
from lockfast.flow.once import Window
from lockfast.flow.watch import Watcher
from lockfast.runtimes.aio import AsyncioRuntime


class Watch:
    """What happens to locks, one event after another, for as long as one asks."""

    def __init__(self, core: Core, kind: str | None, prefix: str, after: int | None) -> None:
        self._watcher = Watcher(core, kind, prefix, after)

    @property
    def position(self) -> int | None:
        """The last position read; `watch(after=…)` goes on from there."""
        return self._watcher.position

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        event = await self._watcher.next()
        if event is None:
            raise StopAsyncIteration
        return event

    def close(self) -> None:
        """End the iteration, from anywhere."""
        self._watcher.close()


class Client(ClientBase):
    """A connection to a store. Opens its session with the first lock taken.

    Close it, or use it in an `async with` block: everything it holds is given back then.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        ttl: Seconds | None = None,
        owner: str | None = None,
        metadata: str = "",
        connect_timeout: Seconds = 5.0,
        ageing_step: Seconds = 10.0,
        deadlock_after: Seconds = 1.0,
        death_watch: bool = True,
        debug: bool = False,
    ) -> None:
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
        )

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        reentrant: bool = False,
        max_hold: Seconds | None = None,
        lock_delay: Seconds | None = None,
        retain: bool = False,
    ) -> Lock:
        """A lock of this name, as a recipe; nothing is sent yet.

        `ttl` is how long the lock outlives its holder's last sign of life. `priority` is
        a head start in the queue, `ageing_step` seconds each. A `reentrant` lock can be
        taken again by the thread (task) that has it. `max_hold` ends a lease whose holder
        lives but is stuck. `lock_delay` keeps the lock closed for a while after a holder
        lost it, for resources that cannot check tokens. `retain` keeps the lock with this
        client after release, so that its next use costs nothing until others want it.
        """
        options = self._options(ttl, priority, max_hold, lock_delay)
        return Lock(
            self,
            check_name(name),
            lock_places(EXCLUSIVE),
            options,
            reentrant=reentrant,
            retain=retain,
        )

    def rwlock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
        lock_delay: Seconds | None = None,
        retain: bool = False,
    ) -> RWLock:
        """A read-write lock of this name: `.read()`, `.write()`, `.update()`.

        It is the same resource as `lock(name)`, which is its writer. With `retain`,
        readers cost nothing until a writer comes.
        """
        options = self._options(ttl, priority, max_hold, lock_delay)
        return RWLock(self, check_name(name), options, retain)

    def tree(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> Tree:
        """A node in a tree of names, with all below it: `.read()`, `.write()`."""
        return Tree(self, check_name(name), self._options(ttl, priority, max_hold))

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> Semaphore:
        """At most `limit` permits at once over the whole fleet."""
        return Semaphore(self, check_name(name), limit, self._options(ttl, priority, max_hold))

    def all(
        self,
        *names_or_locks: str | Lock,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> Lock:
        """Several locks as one: it holds nothing until it holds everything.

        Names stand for locks of that name; locks, readers and writers of read-write and
        tree locks may be mixed. Two of these never deadlock, whatever the order of names.
        """
        if not names_or_locks:
            raise TypeError("all() takes at least one name or lock")
        parts = []
        for item in names_or_locks:
            if isinstance(item, Lock):
                parts.append(item._places(item._name))
            else:
                parts.append(lock_places(EXCLUSIVE)(check_name(item)))
        places = joined_places(parts)
        name = ", ".join(item.name if isinstance(item, Lock) else item for item in names_or_locks)
        return Lock(self, name, lambda _: places, self._options(ttl, priority, max_hold))

    def election(self, name: str, *, ttl: Seconds | None = None, priority: int = 0) -> Election:
        """An election of one leader among the candidates of this name."""
        return Election(self, check_name(name), self._options(ttl, priority))

    def party(self, name: str, *, ttl: Seconds | None = None) -> Party:
        """A party of this name: members with values."""
        return Party(self, check_name(name), self._options(ttl))

    def once(
        self,
        name: str,
        *,
        at_least: Seconds,
        at_most: Seconds,
        retry_crashed: bool = False,
        ttl: Seconds | None = None,
    ) -> Once:
        """At most one run per window over the whole fleet, as a decorator.

        From the start of a run on nobody else starts one for `at_least` seconds, even if
        it crashed (unless `retry_crashed`). A run that takes longer than `at_most` is
        taken for stuck. The decorated function returns None where it was not its turn.
        """
        at_least_ms = settings.to_ms(at_least, "at_least")
        at_most_ms = settings.max_hold_to_ms(settings.to_ms(at_most, "at_most") / 1000)
        if at_most_ms < at_least_ms:
            raise ValueError(f"at_most={at_most!r} is shorter than at_least={at_least!r}")
        ttl_ms = self._options(ttl).ttl_ms
        window = Window(at_least_ms, at_most_ms, retry_crashed, ttl_ms)
        return Once(self, check_name(name), window)

    async def inspect(self, name: str, *, kind: str = "lock") -> LockInfo:
        """Who holds a lock, since when, and who waits."""
        return await admin.inspect(self._core, settings.check_kind(kind), check_name(name))

    async def list(self, prefix: str = "", *, kind: str = "lock") -> builtins.list[LockInfo]:
        """The locks in use whose names begin with `prefix`, in order of name."""
        return await admin.list_locks(self._core, settings.check_kind(kind), check_prefix(prefix))

    async def sessions(self) -> builtins.list[SessionInfo]:
        """The sessions in this store, and those that ended lately."""
        return await admin.list_sessions(self._core)

    def watch(
        self, prefix: str = "", *, kind: str | None = "lock", after: int | None = None
    ) -> Watch:
        """Events of locks whose names begin with `prefix`, from now or from `after` on.

        The log is bounded: WatchGapError says that `after` is too long ago, and has a
        fresh snapshot to go on from.
        """
        if kind is not None:
            settings.check_kind(kind)
        return Watch(self._core, kind, check_prefix(prefix), settings.check_position(after))

    async def deadlocks(self) -> builtins.list[DeadlockInfo]:
        """Who waits for each other for ever, in the whole store."""
        cycles = await deadlock.all_deadlocks(self._core.request)
        return [admin.deadlock_info(cycle) for cycle in cycles]

    async def revoke(
        self,
        name: str | None = None,
        *,
        session: str | None = None,
        reason: str,
        kind: str = "lock",
    ) -> int:
        """Take a lock from its holders, or end a whole session; returns how many lost it.

        The holder is told by whom and why. Its work may go on until it notices: only a
        guard keeps it from writing.
        """
        settings.check_text(reason, "reason", settings.METADATA_BYTES_MAX)
        if (name is None) == (session is None):
            raise TypeError("revoke takes the name of a lock or a session, one of them")
        settings.check_kind(kind)
        if session is not None:
            settings.check_text(session, "session", settings.SESSION_BYTES_MAX)
            return await admin.revoke_session(self._core, session, self.owner, reason)
        return await admin.revoke_lock(self._core, kind, check_name(name), self.owner, reason)

    async def close(self) -> None:
        """Give back all that is held and waited for; takes a few seconds at the most."""
        await self._core.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def connect(
    url: str | None = None,
    *,
    ttl: Seconds | None = None,
    owner: str | None = None,
    metadata: str = "",
    connect_timeout: Seconds = 5.0,
    ageing_step: Seconds = 10.0,
    deadlock_after: Seconds = 1.0,
    death_watch: bool = True,
    debug: bool = False,
) -> Client:
    """A client of the store at `url`; of `LOCKFAST_URL`, else of this user's lock file.

    `ttl` is the default of its locks: `LOCKFAST_TTL`, else 30 seconds. `owner` is the
    label others see: `LOCKFAST_OWNER`, else host, pid and program. `metadata` is kept
    with the session for people to read. `deadlock_after` is how long a claim waits before
    it looks for a deadlock. `death_watch=False` is for programs whose children go on with
    the work: their locks outlive them by the TTL. `debug` warns when two locks are taken
    in both orders.
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
    )


_default: Client | None = None


def default_client() -> Client:
    """The client behind `lockfast.lock`, connected when first used."""
    global _default
    if _default is None or _default._core.closed:
        _default = connect()
    return _default


def lock(
    name: str,
    *,
    ttl: Seconds | None = None,
    priority: int = 0,
    reentrant: bool = False,
    max_hold: Seconds | None = None,
    lock_delay: Seconds | None = None,
    retain: bool = False,
) -> Lock:
    """A lock in this user's lock file (or at `LOCKFAST_URL`); see `Client.lock`."""
    return default_client().lock(
        name,
        ttl=ttl,
        priority=priority,
        reentrant=reentrant,
        max_hold=max_hold,
        lock_delay=lock_delay,
        retain=retain,
    )
