"""Elections, parties, and jobs that run once. The counterpart of `aio.groups`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from lockfast.api import settings
from lockfast.api.base import Named, Options, Part
from lockfast.api.blocking.lease import Lease, Membership, Term
from lockfast.api.blocking.recipes import Recipe, is_async, refuse_generator
from lockfast.api.settings import Seconds
from lockfast.api.template import title
from lockfast.core.commands import Place
from lockfast.core.modes import ELECTION, EXCLUSIVE, ONCE, PARTY, SHARED
from lockfast.errors import RunFailedError
from lockfast.flow import acquire as claims
from lockfast.flow import groups
from lockfast.flow.groups import Leader, LeaderWatcher, Member, PartyWatcher
from lockfast.flow.once import Outcome, Window, finish, wait_for_end
from lockfast.runtimes.threads import run

if TYPE_CHECKING:
    from lockfast.api.blocking.client import Client

P = ParamSpec("P")
T = TypeVar("T")


class Observation:
    """An iterator over the leaders: the current one first, then each change once."""

    def __init__(self, watcher: LeaderWatcher) -> None:
        self._watcher = watcher

    def __iter__(self) -> Iterator[Leader | None]:
        return self

    def __next__(self) -> Leader | None:
        changed, leader = run(self._watcher.next())
        if not changed:
            raise StopIteration
        return leader

    def close(self) -> None:
        """End the iteration. May be called from any thread."""
        self._watcher.close()


class Election(Recipe[Term]):
    """Elects one leader; the other candidates wait in order of arrival."""

    _lease = Term

    def __init__(self, client: Client, name: str, options: Options) -> None:
        part = Part(name, lambda name: (Place(ELECTION, name, EXCLUSIVE),))
        super().__init__(client, (part,), options)

    def campaign(
        self,
        value: str = "",
        *,
        timeout: Seconds | None = None,
        on_elected: Callable[[Term], None] | None = None,
        on_lost: Callable[[Term], None] | None = None,
    ) -> Term:
        """Wait to be elected and return the term.

        Others read `value` from `leader()`; it may be an address, for example. `on_elected`
        is called before this method returns, `on_lost` when the term is lost. Stop leading
        at `term.deadline`. The next leader has a higher epoch.
        """
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        term = self._wait_for(self._ask()._replace(value=value), timeout)
        if on_lost is not None:
            term.on_lost(on_lost)
        if on_elected is not None:
            try:
                on_elected(term)
            except BaseException:
                term._release_later()
                raise
        return term

    def leader(self) -> Leader | None:
        """Return the current leader, or None."""
        return run(groups.leader(self._core, self._name))

    def observe(self) -> Observation:
        """Iterate over the leaders: the current one (or None) first, then each change."""
        return Observation(LeaderWatcher(self._core, self._name))


class Changes:
    """An iterator over the members of a party: the current ones first, then each change."""

    def __init__(self, watcher: PartyWatcher) -> None:
        self._watcher = watcher

    def __iter__(self) -> Iterator[tuple[Member, ...]]:
        return self

    def __next__(self) -> tuple[Member, ...]:
        members = run(self._watcher.next())
        if members is None:
            raise StopIteration
        return members

    def close(self) -> None:
        """End the iteration. May be called from any thread."""
        self._watcher.close()


class Party(Recipe[Membership]):
    """A group of members, each with a value. A member that crashes leaves the party."""

    _lease = Membership

    def __init__(self, client: Client, name: str, options: Options) -> None:
        part = Part(name, lambda name: (Place(PARTY, name, SHARED),))
        super().__init__(client, (part,), options)

    def join(self, value: str = "") -> Membership:
        """Join with a value that others can read. `Membership.leave()` leaves the party."""
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        return self._wait_for(self._ask()._replace(value=value), None)

    def members(self) -> tuple[Member, ...]:
        """Return the current members, in the order in which they joined."""
        return run(groups.members(self._core, self._name))

    def watch(self) -> Changes:
        """Iterate over the members: the current ones first, then again after each change."""
        return Changes(PartyWatcher(self._core, self._name))


class Once(Named):
    """A decorator that runs a function at most once per window across all clients."""

    def __init__(self, client: Client, name: str, window: Window) -> None:
        self._core = client._core
        self._name = name
        self._window = window

    def __call__(self, function: Callable[P, T]) -> Callable[P, T | None]:
        """Wrap `function`: a call runs it if no other run blocks the window, else returns None.

        With `wait`, a call waits for a run in progress and then returns None; it raises
        RunFailedError if that run failed.
        """
        if is_async(function):
            raise TypeError(f"{title(function)} is async: use a client of lockfast.aio")
        refuse_generator(function)

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> T | None:
            outcome, result = self.run(function, *args, **kwargs)
            if outcome is Outcome.FAILED:
                raise RunFailedError(self._name)
            return result

        return once

    def run(
        self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> tuple[Outcome, T | None]:
        """Call `function` if no other run blocks the window; return what happened, and its result.

        The outcome is `ran` or `skipped`; with `wait`, instead of `skipped`, `done` or `failed`
        elsewhere. An exception of `function` is raised here.
        """
        lease = self._take()
        if not isinstance(lease, Lease):
            return lease, None
        went_well = False
        try:
            result = function(*args, **kwargs)
            went_well = True
            return Outcome.RAN, result
        finally:
            self._finish(lease, went_well)

    def _take(self) -> Lease | Outcome:
        """Return the lease under which to run, or why not to."""
        core = self._core
        while True:
            lease = Lease(core, core.holding(self._window.ask(ONCE, self._name)))
            if run(claims.acquire(core, lease._holding, 0)):
                return lease
            if not self._window.wait:
                return Outcome.SKIPPED
            outcome = run(wait_for_end(core, self._name, self._window))
            if outcome is not None:
                return outcome

    def _finish(self, lease: Lease, went_well: bool) -> None:
        run(finish(self._core, lease._holding, self._window, went_well))
