"""How to ask: locks, read-write and tree locks, semaphores. The twin of `aio.recipes`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockfast.api import settings
from lockfast.api.base import (
    Options,
    Part,
    RecipeBase,
    check_limit,
    check_permits,
    lease_of_block,
    lock_places,
    tree_places,
)
from lockfast.api.blocking.lease import Lease, Permit
from lockfast.api.settings import Seconds
from lockfast.api.template import namer, title
from lockfast.core.commands import Done, Place, Resize
from lockfast.core.modes import EXCLUSIVE, PERMIT, SEMAPHORE, SHARED, UPDATE
from lockfast.errors import AcquireTimeoutError
from lockfast.flow import acquire as claims
from lockfast.flow.holding import Ask
from lockfast.flow.retained import Use
from lockfast.runtimes.threads import run

if TYPE_CHECKING:
    from lockfast.api.blocking.client import Client

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Lease)

CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR = 0x20, 0x80, 0x200
"""Flags of a code object, so that `inspect` need not be imported."""


def _flags(function: Callable[..., Any]) -> int:
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(type(function).__call__, "__code__", None)
    return code.co_flags if isinstance(code, CodeType) else 0


def is_async(function: Callable[..., Any]) -> bool:
    """Whether it is an `async def` that is to be awaited."""
    return bool(_flags(function) & CO_COROUTINE)


def refuse_generator(function: Callable[..., Any]) -> None:
    """To call a generator only begins it: its body would run after the lock is given back."""
    if _flags(function) & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        raise TypeError(f"{title(function)} is a generator: take the lock inside it")


class Recipe(RecipeBase, Generic[L]):
    """What every recipe can do: take, and hold for the length of a block."""

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

    def _take(self, ask: Ask, timeout_ms: int | None) -> L:
        core = self._core
        if self._reentrant:
            held: L | None = self._client._leases_of.get((core.actor(), ask.places))
            if held is not None:
                held._re_enter()
                return held
        if self._retain:
            lease = self._take_retained(ask, timeout_ms)
        else:
            # The lease is there before anything is sent: whatever happens to us from here
            # on, it is either returned or given back, at the latest when it is collected.
            lease = self._lease(core, core.holding(ask))
            if not run(claims.acquire(core, lease._holding, timeout_ms)):
                holders, ahead = claims.who_is_ahead(lease._holding)
                raise AcquireTimeoutError(ask.name, 0.0, holders=holders, ahead=ahead)
        if self._reentrant:
            key = (core.actor(), ask.places)
            leases_of = self._client._leases_of
            leases_of[key] = lease
            # Without the recipe: it has the lease too, and only a collector finds circles.
            lease._on_released = lambda: leases_of.pop(key, None)
        return lease

    def _take_retained(self, ask: Ask, timeout_ms: int | None) -> L:
        retained = self._retained_lock(ask)
        lease = self._lease(self._core, retained.nothing)
        lease._retained = retained
        lease._use = use = Use(self._core.actor())
        run(retained.take(timeout_ms, use))
        assert use.holding is not None
        lease._holding = use.holding
        return lease

    def _wait_for(self, ask: Ask, timeout: Seconds | None) -> L:
        return self._take(ask, settings.timeout_to_ms(timeout))

    def _try(self, ask: Ask) -> L | None:
        try:
            return self._take(ask, 0)
        except AcquireTimeoutError:
            return None

    def __enter__(self) -> L:
        actor = self._core.runtime.actor()
        lease = self._wait_for(self._ask(), None)
        # An interruption (Ctrl-C) strikes after a call. After the last one here the lease
        # belongs to this frame alone, so it is given back; then it belongs to the block.
        self._entered[actor] = [*self._entered.get(actor, ()), lease]
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = lease_of_block(self._entered, self._core.runtime.actor())
        lease.__exit__(kind, error, trace)


class Lock(Recipe[Lease]):
    """A lock as a recipe: it holds nothing and may be shared by threads.

    `with lock as lease:` holds or raises: the body never runs without the lock.
    """

    _lease = Lease

    def acquire(self, *, timeout: Seconds | None = None) -> Lease:
        """Wait for the lock and return the lease that proves we hold it.

        Claims are served in order of arrival. The lease ends at `lease.deadline` unless
        its session is renewed; from then on another holder may be at work, so hand
        `lease.token` to whatever you write to.

        Raises AcquireTimeoutError after `timeout` seconds (None: wait for ever), having
        left the queue.
        """
        return self._wait_for(self._ask(), timeout)

    def try_acquire(self) -> Lease | None:
        """Take the lock if it can be had at once, else return None."""
        return self._try(self._ask())

    def __call__(self, function: F) -> F:
        """Run every call of `function` under this lock.

        `{argument}` in the name stands for the call's argument of that name, escaped.
        """
        if is_async(function):
            raise TypeError(f"{title(function)} is async: use a lock of lockfast.aio")
        refuse_generator(function)
        namers = [namer(part.name, function) for part in self._parts]

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            names = [name_of(*args, **kwargs) for name_of in namers]
            with self._wait_for(self._ask_for_names(names), None):
                return function(*args, **kwargs)

        return locked  # type: ignore[return-value]


class RWLock:
    """Many readers or one writer; in order of arrival, so neither starves the other."""

    def __init__(self, client: Client, name: str, options: Options, retain: bool) -> None:
        self._client = client
        self._name = name
        self._options = options
        self._retain = retain

    def read(self) -> Lock:
        """To read: together with other readers."""
        return self._lock(SHARED, self._retain)

    def write(self) -> Lock:
        """To write: alone."""
        return self._lock(EXCLUSIVE, self._retain)

    def update(self) -> Lock:
        """To read now and perhaps write later: with readers, but one such at a time.

        `lease.upgrade()` makes it the writer, and is never refused.
        """
        return self._lock(UPDATE, False)

    def _lock(self, mode: str, retain: bool) -> Lock:
        part = Part(self._name, lock_places(mode))
        return Lock(self._client, (part,), self._options, retain=retain)


class Tree:
    """A node of a tree of names: its lock covers all below it."""

    def __init__(self, client: Client, name: str, options: Options) -> None:
        self._client = client
        self._name = name
        self._options = options

    def read(self) -> Lock:
        """To read the node and all below it: together with other readers."""
        return self._lock(SHARED)

    def write(self) -> Lock:
        """To write the node and all below it: alone there; siblings are not disturbed."""
        return self._lock(EXCLUSIVE)

    def _lock(self, mode: str) -> Lock:
        return Lock(self._client, (Part(self._name, tree_places(mode)),), self._options)


class Semaphore(Recipe[Permit]):
    """At most `limit` permits at once over the whole fleet; a crash gives them back."""

    _lease = Permit

    def __init__(self, client: Client, name: str, limit: int, options: Options) -> None:
        self._limit = check_limit(limit)
        super().__init__(client, (Part(name, self._of_one),), options)

    def _of_one(self, name: str) -> tuple[Place, ...]:
        return (Place(SEMAPHORE, name, PERMIT, 1, self._limit),)

    def _ask(self) -> Ask:
        return self._ask_for_names([self._name])  # anew each time: resize() changes the limit

    def _ask_for(self, permits: int) -> Ask:
        weight = check_permits(permits, self._limit)
        place = Place(SEMAPHORE, self._name, PERMIT, weight, self._limit)
        return self._ask()._replace(places=(place,))

    @property
    def limit(self) -> int:
        """How many permits there are, as this recipe knows it."""
        return self._limit

    def acquire(self, *, permits: int = 1, timeout: Seconds | None = None) -> Permit:
        """Wait for permits; a large request is served in its turn, before later small ones.

        Raises AcquireTimeoutError after `timeout` seconds (None: wait for ever), and
        LimitError if the semaphore is in use with another limit.
        """
        return self._wait_for(self._ask_for(permits), timeout)

    def try_acquire(self, *, permits: int = 1) -> Permit | None:
        """Take permits if they can be had at once, else return None."""
        return self._try(self._ask_for(permits))

    def resize(self, limit: int) -> bool:
        """Give a semaphore in use another limit; False if nobody uses it.

        A lower limit takes nothing away: it counts from the next grant on.
        """
        command = Resize(SEMAPHORE, self._name, check_limit(limit))
        done = run(self._core.ask(command, Done))
        self._limit = limit
        return done.found
