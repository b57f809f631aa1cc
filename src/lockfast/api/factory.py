"""How a client makes its recipes: the same in both faces, for nothing waits here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from lockfast.api import settings
from lockfast.api.base import ClientBase, Part, RecipeBase, lock_places
from lockfast.api.settings import Seconds
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.names import check_name
from lockfast.flow.once import Window

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
    """A client's recipes, of the classes of one face. Nothing is sent by making one."""

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
    ) -> LockT:
        """A lock of this name, as a recipe; nothing is sent yet.

        `ttl` is how long the lock outlives its holder's last sign of life. `priority` is
        a head start in the queue, `ageing_step` seconds each. A `reentrant` lock can be
        taken again by the thread (task) that has it. `max_hold` ends a lease whose holder
        lives but is stuck. `lock_delay` keeps the lock closed for a while after a holder
        lost it, for resources that cannot check tokens. `retain` keeps the lock with this
        client after release, so that its next use costs nothing until others want it.
        """
        options = self._options(ttl, priority, max_hold, lock_delay)
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
    ) -> RWLockT:
        """A read-write lock of this name: `.read()`, `.write()`, `.update()`.

        It is the same resource as `lock(name)`, which is its writer. With `retain`,
        readers cost nothing until a writer comes.
        """
        options = self._options(ttl, priority, max_hold, lock_delay)
        return self._rwlock_type(self, check_name(name), options, retain)

    def tree(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> TreeT:
        """A node in a tree of names, with all below it: `.read()`, `.write()`."""
        return self._tree_type(self, check_name(name), self._options(ttl, priority, max_hold))

    def semaphore(
        self,
        name: str,
        limit: int,
        *,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> SemaphoreT:
        """At most `limit` permits at once over the whole fleet."""
        options = self._options(ttl, priority, max_hold)
        return self._semaphore_type(self, check_name(name), limit, options)

    def all(
        self,
        *names_or_locks: str | LockT,
        ttl: Seconds | None = None,
        priority: int = 0,
        max_hold: Seconds | None = None,
    ) -> LockT:
        """Several locks as one: it holds nothing until it holds everything.

        Names stand for locks of that name; locks, readers and writers of read-write and
        tree locks may be mixed. Two of these never deadlock, whatever the order of names.
        """
        if not names_or_locks:
            raise TypeError("all() takes at least one name or lock")
        parts: list[Part] = []
        for item in names_or_locks:
            if isinstance(item, RecipeBase):
                parts += item._parts
            else:
                parts.append(Part(check_name(item), lock_places(EXCLUSIVE)))
        return self._lock_type(self, tuple(parts), self._options(ttl, priority, max_hold))

    def election(self, name: str, *, ttl: Seconds | None = None, priority: int = 0) -> ElectionT:
        """An election of one leader among the candidates of this name."""
        return self._election_type(self, check_name(name), self._options(ttl, priority))

    def party(self, name: str, *, ttl: Seconds | None = None) -> PartyT:
        """A party of this name: members with values."""
        return self._party_type(self, check_name(name), self._options(ttl))

    def once(
        self,
        name: str,
        *,
        at_least: Seconds,
        at_most: Seconds,
        retry_crashed: bool = False,
        ttl: Seconds | None = None,
    ) -> OnceT:
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
        return self._once_type(self, check_name(name), window)
