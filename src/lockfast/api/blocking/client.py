"""The client: where everything begins. The twin of `aio.client`."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import TracebackType

from lockfast.api import settings
from lockfast.api.blocking.groups import Election, Once, Party
from lockfast.api.blocking.recipes import Lock, RWLock, Semaphore, Tree
from lockfast.api.factory import RecipeFactory
from lockfast.api.settings import Seconds
from lockfast.core.names import check_name, check_prefix
from lockfast.flow import admin, deadlock
from lockfast.flow.admin import DeadlockInfo, LockInfo, SessionInfo, WatchEvent
from lockfast.flow.client import Core
from lockfast.flow.watch import Watcher
from lockfast.runtimes.threads import ThreadsRuntime, run


class Watch:
    """What happens to locks, one event after another, for as long as one asks."""

    def __init__(self, core: Core, kind: str | None, prefix: str, after: int | None) -> None:
        self._watcher = Watcher(core, kind, prefix, after)

    @property
    def position(self) -> int | None:
        """The last position read; `watch(after=…)` goes on from there."""
        return self._watcher.position

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        event = run(self._watcher.next())
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """End the iteration, from anywhere."""
        self._watcher.close()


class Client(RecipeFactory[Lock, RWLock, Tree, Semaphore, Election, Party, Once]):
    """A connection to a store. Opens its session with the first lock taken.

    Close it, or use it in a `with` block: everything it holds is given back then.
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
            "threads",
            ThreadsRuntime(),
            ttl=ttl,
            owner=owner,
            metadata=metadata,
            connect_timeout=connect_timeout,
            ageing_step=ageing_step,
            deadlock_after=deadlock_after,
            death_watch=death_watch,
            debug=debug,
        )

    def inspect(self, name: str, *, kind: str = "lock") -> LockInfo:
        """Who holds a lock, since when, and who waits."""
        return run(admin.inspect(self._core, settings.check_kind(kind), check_name(name)))

    def list(self, prefix: str = "", *, kind: str = "lock") -> builtins.list[LockInfo]:
        """The locks in use whose names begin with `prefix`, in order of name."""
        return run(admin.list_locks(self._core, settings.check_kind(kind), check_prefix(prefix)))

    def sessions(self) -> builtins.list[SessionInfo]:
        """The sessions in this store, and those that ended lately."""
        return run(admin.list_sessions(self._core))

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

    def deadlocks(self) -> builtins.list[DeadlockInfo]:
        """Who waits for each other for ever, in the whole store."""
        cycles = run(deadlock.all_deadlocks(self._core.request, self._core.runtime.now_ms))
        return [admin.deadlock_info(cycle) for cycle in cycles]

    def revoke(
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
            return run(admin.revoke_session(self._core, session, self.owner, reason))
        return run(admin.revoke_lock(self._core, kind, check_name(name), self.owner, reason))

    def close(self) -> None:
        """Give back all that is held and waited for; takes a few seconds at the most."""
        run(self._core.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
