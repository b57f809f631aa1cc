"""Read and watch elections and parties."""

from __future__ import annotations

from typing import NamedTuple

from lockfast.core.modes import ELECTION, PARTY
from lockfast.errors import WatchGapError
from lockfast.flow.admin import ClaimInfo, WatchEvent, inspect, inspect_all_holders
from lockfast.flow.client import Core
from lockfast.flow.watch import ENDINGS, Watcher


class Leader(NamedTuple):
    """The current leader of an election."""

    value: str
    owner: str
    session: str
    epoch: int
    """The token of the term."""
    seconds: float
    """How long the term has lasted."""


class Member(NamedTuple):
    """One member of a party."""

    value: str
    owner: str
    session: str
    n: int
    seconds: float
    """How long the member has been in the party."""


async def leader(core: Core, name: str) -> Leader | None:
    holders = (await inspect(core, ELECTION, name)).holders
    return _leader(holders[0]) if holders else None


async def members(core: Core, name: str) -> tuple[Member, ...]:
    holders = (await inspect_all_holders(core, PARTY, name)).holders
    return tuple(
        Member(claim.value or "", claim.owner, claim.session, claim.n, claim.seconds)
        for claim in holders
    )


def _leader(claim: ClaimInfo) -> Leader:
    return Leader(claim.value or "", claim.owner, claim.session, claim.token or 0, claim.seconds)


class LeaderWatcher:
    """Yields the current leader, then each change once, including short-lived ones."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        self._name = name
        self._watcher = Watcher(core, ELECTION, name, None, exact=True)
        self._last: Leader | None = None
        self._started = False
        self._missed_changes = False

    async def next(self) -> tuple[bool, Leader | None]:
        """Return (True, leader) for the next change, or (False, None) once closed."""
        if not self._started:
            # Read the end of the log before the leader, so that no change is missed.
            await self._watcher.start()
            self._last = await leader(self._core, self._name)
            self._started = True
            return True, self._last
        while True:
            before = self._last
            if self._missed_changes:
                self._last = await leader(self._core, self._name)
                self._missed_changes = False
            else:
                try:
                    event = await self._watcher.next()
                except WatchGapError:
                    # The log no longer has the changes in between; report the current leader. If
                    # the caller is cancelled before it has been read, the next call reads it.
                    self._missed_changes = True
                    continue
                if event is None:
                    return False, None
                if event.name != self._name:
                    continue
                self._last = self._after(event)
            if _differ(before, self._last):
                return True, self._last

    def _after(self, event: WatchEvent) -> Leader | None:
        """Return the leader after an event."""
        last = self._last
        if event.what == "granted":
            if last is not None and (event.token or 0) <= last.epoch:
                return last  # the initial read already returned this leader
            return Leader(event.detail, event.owner, event.session, event.token or 0, 0.0)
        if last is None or event.token != last.epoch:
            return last
        if event.what == "proclaimed":
            return last._replace(value=event.detail)
        if event.what in ENDINGS:
            # If the next leader is elected in the same step, report one change, not two.
            return last if self._watcher.hands_over(event, "granted") else None
        return last

    def close(self) -> None:
        self._watcher.close()


def _differ(one: Leader | None, other: Leader | None) -> bool:
    if one is None or other is None:
        return one is not other
    return (one.epoch, one.value) != (other.epoch, other.value)


class PartyWatcher:
    """Yields the current members, then the members after each change."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        self._name = name
        self._watcher = Watcher(core, PARTY, name, None, exact=True)
        self._last: frozenset[tuple[str, int, str]] | None = None
        self._is_current = False
        """No event was read since the members were."""

    async def next(self) -> tuple[Member, ...] | None:
        """Return the members after the next change, or None once closed."""
        await self._watcher.start()
        while True:
            if self._is_current:
                # If the caller is cancelled after the event and before the members have been
                # read, the next call reads them.
                self._is_current = False
                try:
                    if await self._watcher.next() is None:
                        return None
                except WatchGapError:
                    pass  # read the current members below
            now = await members(self._core, self._name)
            self._is_current = True
            known = frozenset((member.session, member.n, member.value) for member in now)
            if known != self._last:
                self._last = known
                return now

    def close(self) -> None:
        self._watcher.close()
