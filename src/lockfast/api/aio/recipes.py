"""Recipes: locks, read-write and tree locks, semaphores. The counterpart of `blocking.recipes`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar

from lockfast.api import settings
from lockfast.api.aio.acquiring import Acquiring
from lockfast.api.aio.lease import Lease, Permit
from lockfast.api.base import (
    Named,
    Options,
    Part,
    RecipeBase,
    check_limit,
    check_permits,
    lease_of_block,
    lock_places,
    tree_places,
)
from lockfast.api.blocking.recipes import is_async
from lockfast.api.settings import DEFAULT, Timeout
from lockfast.api.template import namer, title
from lockfast.core.commands import Done, Place, Resize
from lockfast.core.modes import EXCLUSIVE, PERMIT, SEMAPHORE, SHARED, UPDATE
from lockfast.errors import AcquireTimeoutError
from lockfast.flow import acquire as claims
from lockfast.flow import admin
from lockfast.flow.holding import Ask
from lockfast.flow.retained import Use

if TYPE_CHECKING:
    from lockfast.api.aio.client import Client

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Lease)


class Recipe(RecipeBase, Generic[L]):
    """A recipe that can acquire, directly or for the length of a block."""

    _lease: type[L]
    _client: Client

    def __init__(
        self,
        client: Client,
        parts: tuple[Part, ...],
        options: Options,
        *,
        reentrant: bool = False,
        retain: bool = False,
    ) -> None:
        super().__init__(client, parts, options, reentrant=reentrant, retain=retain)
        self._entered: dict[str, list[L]] = {}

    async def _take(self, ask: Ask, timeout_ms: int | None) -> L:
        core = self._core
        if self._reentrant:
            held: L | None = self._client._leases_of.get((core.actor(), ask.places))
            if held is not None:
                held._re_enter()
                return held
        if self._retain:
            lease = await self._acquire_retained(ask, timeout_ms)
        else:
            # Create the lease before sending anything: from here on it is either returned to
            # the caller or released, at the latest by its finalizer.
            lease = self._lease(core, core.holding(ask))
            if not await claims.acquire(core, lease._holding, timeout_ms):
                holders, ahead = claims.who_is_ahead(lease._holding)
                raise AcquireTimeoutError(ask.name, 0.0, holders=holders, ahead=ahead)
        if self._reentrant:
            key = (core.actor(), ask.places)
            leases_of = self._client._leases_of
            leases_of[key] = lease
            # Do not capture `self`: the reference cycle would delay the lease's finalizer.
            lease._on_released = lambda: leases_of.pop(key, None)
        return lease

    async def _acquire_retained(self, ask: Ask, timeout_ms: int | None) -> L:
        retained = self._retained_lock(ask)
        lease = self._lease(self._core, retained.nothing)
        lease._retained = retained
        lease._use = use = Use(self._core.actor())
        await retained.acquire(timeout_ms, use)
        assert use.holding is not None
        lease._holding = use.holding
        return lease

    def _wait_for(self, ask: Ask, timeout: Timeout) -> Coroutine[Any, Any, L]:
        return self._take(ask, self._timeout_ms(timeout))

    async def _try(self, ask: Ask) -> L | None:
        try:
            return await self._take(ask, 0)
        except AcquireTimeoutError:
            return None

    async def __aenter__(self) -> L:
        lease = await self._wait_for(self._ask(), DEFAULT)
        lease._open_block()
        self._entered.setdefault(self._core.runtime.actor(), []).append(lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = lease_of_block(self._entered, self._core.runtime.actor())
        await lease.__aexit__(kind, error, trace)


class Lock(Recipe[Lease]):
    """A lock as a recipe: it holds nothing and may be shared by tasks.

    `async with lock as lease:` holds or raises: the body never runs without the lock.
    """

    _lease = Lease

    def acquire(self, *positional: Never, timeout: Timeout = DEFAULT) -> Acquiring[Lease]:
        """Wait for the lock and return the lease that proves we hold it.

        Claims are served in order of arrival. The lease ends at `lease.deadline` unless
        its session is renewed. After that another client may hold the lock, so send
        `lease.token` with each write.

        Raises AcquireTimeoutError after `timeout` seconds (None: no timeout; by default the
        timeout of the lock), after leaving the queue.
        """
        if positional:
            raise settings.positional_error("acquire", positional, "timeout")
        return Acquiring(self._wait_for(self._ask(), timeout))

    async def try_acquire(self) -> Lease | None:
        """Acquire the lock if it is available immediately, else return None."""
        return await self._try(self._ask())

    async def locked(self) -> bool:
        """Return True if holders would make `acquire` wait now.

        The answer may be outdated when you get it: to act only if the lock is free, use
        `try_acquire`.
        """
        return await admin.is_locked(self._core, self._ask().places)

    def __call__(self, function: F) -> F:
        """Wrap `function` so that each call runs under this lock.

        `{argument}` in the lock's name is replaced by the escaped value of that argument.
        """
        if not is_async(function):
            raise TypeError(f"{title(function)} is not async: use a lock of lockfast")
        namers = [namer(part.name, function) for part in self._parts]

        @functools.wraps(function)
        async def locked(*args: Any, **kwargs: Any) -> Any:
            names = [name_of(*args, **kwargs) for name_of in namers]
            async with Acquiring(self._wait_for(self._ask_for_names(names), DEFAULT)):
                return await function(*args, **kwargs)

        return locked  # type: ignore[return-value]


class RWLock(Named):
    """Many readers or one writer, granted in order of arrival so that neither starves."""

    def __init__(self, client: Client, name: str, options: Options, retain: bool) -> None:
        self._client = client
        self._core = client._core
        self._name = name
        self._options = options
        self._retain = retain

    def read(self) -> Lock:
        """Return the lock for reading, shared with other readers."""
        return self._lock(SHARED, self._retain)

    def write(self) -> Lock:
        """Return the lock for writing, exclusive."""
        return self._lock(EXCLUSIVE, self._retain)

    def update(self) -> Lock:
        """Return the lock for reading now and possibly writing later.

        It is shared with readers, but only one client holds it at a time, so
        `lease.upgrade()` never deadlocks with another upgrade.
        """
        return self._lock(UPDATE, False)

    def _lock(self, mode: str, retain: bool) -> Lock:
        part = Part(self._name, lock_places(mode))
        return Lock(self._client, (part,), self._options, retain=retain)


class Tree(Named):
    """A node in a tree of names. Its lock covers the node and all its descendants."""

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self._client = client
        self._core = client._core
        self._name = name
        self._options = options

    def read(self) -> Lock:
        """Return the lock for reading the node and its descendants, shared with readers."""
        return self._lock(SHARED)

    def write(self) -> Lock:
        """Return the exclusive lock for the node and its descendants; siblings stay free."""
        return self._lock(EXCLUSIVE)

    def _lock(self, mode: str) -> Lock:
        return Lock(self._client, (Part(self._name, tree_places(mode)),), self._options)


class Semaphore(Recipe[Permit]):
    """A semaphore shared by all clients. When a client crashes, its permits are released."""

    _lease = Permit

    def __init__(self, client: Client, name: str, limit: int, options: Options) -> None:
        self._limit = check_limit(limit)
        super().__init__(client, (Part(name, self._of_one),), options)

    def _of_one(self, name: str) -> tuple[Place, ...]:
        return (Place(SEMAPHORE, name, PERMIT, 1, self._limit),)

    def _ask(self) -> Ask:
        return self._ask_for_names([self._name])  # not cached: resize() changes the limit

    def _ask_for(self, permits: int) -> Ask:
        weight = check_permits(permits, self._limit)
        place = Place(SEMAPHORE, self._name, PERMIT, weight, self._limit)
        return self._ask()._replace(places=(place,))

    @property
    def limit(self) -> int:
        """The total number of permits, as set on this recipe."""
        return self._limit

    def acquire(
        self, *positional: Never, permits: int = 1, timeout: Timeout = DEFAULT
    ) -> Acquiring[Permit]:
        """Wait for permits. A large request is served before smaller ones that came later.

        Raises AcquireTimeoutError after `timeout` seconds (None: no timeout; by default the
        timeout of the semaphore), and LimitError if the semaphore is in use with another limit.
        """
        if positional:
            raise settings.positional_error("acquire", positional, "permits", "timeout")
        return Acquiring(self._wait_for(self._ask_for(permits), timeout))

    async def try_acquire(self, *, permits: int = 1) -> Permit | None:
        """Acquire permits if they are available immediately, else return None."""
        return await self._try(self._ask_for(permits))

    async def resize(self, limit: int) -> bool:
        """Change the limit of a semaphore in use. Return False if it is not in use.

        A lower limit revokes no permits; it applies from the next grant on.
        """
        command = Resize(SEMAPHORE, self._name, check_limit(limit))
        done = await self._core.ask(command, Done)
        self._limit = limit
        return done.found
