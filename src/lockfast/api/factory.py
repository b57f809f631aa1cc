"""The methods of a client that create recipes. They never wait, so both APIs share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from lockfast.api import settings
from lockfast.api.base import ClientBase, Part, RecipeBase, lock_places
from lockfast.api.settings import Seconds
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.names import check_name
from lockfast.flow.once import Window, require_waiting

LockT = TypeVar("LockT", bound=RecipeBase)
RWLockT = TypeVar("RWLockT")
TreeT = TypeVar("TreeT")
SemaphoreT = TypeVar("SemaphoreT")
ElectionT = TypeVar("ElectionT")
PartyT = TypeVar("PartyT")
OnceT = TypeVar("OnceT")


class RecipeFactory(
    ClientBase, Generic[LockT, RWLockT, TreeT, SemaphoreT, ElectionT, PartyT, OnceT]
):
    """Creates recipes, of the classes of one API. Creating a recipe sends nothing."""

    _lock_type: Callable[..., LockT]
    _rwlock_type: Callable[..., RWLockT]
    _tree_type: Callable[..., TreeT]
    _semaphore_type: Callable[..., SemaphoreT]
    _election_type: Callable[..., ElectionT]
    _party_type: Callable[..., PartyT]
    _once_type: Callable[..., OnceT]

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
        timeout: Seconds | None = None,
        renew: bool = True,
    ) -> LockT:
        """Create the recipe of a lock with this name; nothing is sent yet.

        `ttl` is how long the lease lasts after the holder's last keep-alive. Each step of
        `priority` is a head start of `ageing_step` seconds in the queue. The thread or task
        that holds a `reentrant` lock can acquire it again. `max_hold` ends a lease whose
        holder is alive but stuck. After a holder has lost the lock, `lock_delay` delays the
        next grant, for resources that cannot check tokens. With `retain`, the client keeps
        the lock after release and reuses it without a request until another client waits.
        `timeout` is how long `acquire`, `with` and the decorator wait unless told otherwise;
        they then raise AcquireTimeoutError. A lease with `renew=False` ends `ttl` seconds
        after it was granted, unless `lease.extend()` moves its end.
        """
        if retain and not renew:
            raise ValueError("retain=True needs renew=True: a retained lock has no fixed end")
        options = self._options(ttl, priority, max_hold, lock_delay, timeout, renew)
        part = Part(check_name(name), lock_places(EXCLUSIVE))
        return self._lock_type(self, (part,), options, reentrant=reentrant, retain=retain)

    def rwlock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
        lock_delay: Seconds | None = None,
        retain: bool = False,
        timeout: Seconds | None = None,
    ) -> RWLockT:
        """Create a read-write lock with this name: `.read()`, `.write()`, `.update()`.

        It shares its resource with `lock(name)`, which excludes readers and writers. With
        `retain`, the client reuses a read lock without a request until a writer waits.
        """
        options = self._options(ttl, priority, max_hold, lock_delay, timeout)
        return self._rwlock_type(self, check_name(name), options, retain)

    def tree(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> TreeT:
        """Create a lock on a node and all its descendants: `.read()`, `.write()`."""
        options = self._options(ttl, priority, max_hold, timeout=timeout)
        return self._tree_type(self, check_name(name), options)

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> SemaphoreT:
        """Create a semaphore that all clients of the store share, with `limit` permits."""
        options = self._options(ttl, priority, max_hold, timeout=timeout)
        return self._semaphore_type(self, check_name(name), limit, options)

    def all(
        self,
        *names_or_locks: str | LockT,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> LockT:
        """Combine several locks into one that is granted all at once or not at all.

        A name stands for the lock with that name. Locks, read-write locks and tree locks
        may be mixed. Two combined locks never deadlock, whatever the order of their names.
        """
        if not names_or_locks:
            raise TypeError("all() takes at least one name or lock")
        parts: list[Part] = []
        for item in names_or_locks:
            if isinstance(item, RecipeBase):
                parts += item._parts
            else:
                parts.append(Part(check_name(item), lock_places(EXCLUSIVE)))
        options = self._options(ttl, priority, max_hold, timeout=timeout)
        return self._lock_type(self, tuple(parts), options)

    def election(self, name: str, *, ttl: Seconds | None = None, priority: int = 0) -> ElectionT:
        """Create an election of one leader among all candidates for this name."""
        return self._election_type(self, check_name(name), self._options(ttl, priority))

    def party(self, name: str, *, ttl: Seconds | None = None) -> PartyT:
        """Create a party: a group of members, each with a value."""
        return self._party_type(self, check_name(name), self._options(ttl))

    def once(
        self,
        name: str,
        *,
        at_least: Seconds,
        at_most: Seconds,
        retry_crashed: bool = False,
        wait: bool = False,
        ttl: Seconds | None = None,
    ) -> OnceT:
        """Create a decorator that runs a function at most once per window across all clients.

        After a run starts, no client starts another for `at_least` seconds, even if the run
        crashes (unless `retry_crashed`). A run that takes longer than `at_most` is presumed
        stuck and loses its claim. A call that may not run returns None. With `wait`, it first
        waits for the run in progress, and raises RunFailedError if that run fails.
        """
        at_least_ms = settings.to_ms(at_least, "at_least")
        at_most_ms = settings.max_hold_to_ms(settings.to_ms(at_most, "at_most") / 1000)
        if at_most_ms < at_least_ms:
            raise ValueError(f"at_most={at_most!r} is shorter than at_least={at_least!r}")
        ttl_ms = self._options(ttl).ttl_ms
        if wait:
            require_waiting(self._core.store.capabilities)
        window = Window(at_least_ms, at_most_ms, retry_crashed, ttl_ms, wait)
        return self._once_type(self, check_name(name), window)
