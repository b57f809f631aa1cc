"""The limits of each principal on this server: a request rate, and numbers of objects.

Usage is counted by this server since its start; the store has its own limits. Keep-alives and
releases have a separate rate, so that a client at its limit does not lose what it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, NamedTuple

from lockfast.server.problems import over_quota

PRINCIPALS_MAX: Final = 10_000
UNKNOWN_TTL_S: Final = 60.0
"""Assumed for a session that was opened before this server started."""


class Quotas(NamedTuple):
    """The limits of one principal."""

    requests_per_second: float = 5000
    burst: float = 5000
    sessions: int = 10_000
    claims: int = 100_000
    waiters: int = 50_000
    streams: int = 10_000
    requests: int = 20_000
    """Concurrent requests, waiting ones included."""


class _Bucket:
    """A token bucket: `burst` at once, then `rate` per second."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at_s = burst, clock()

    def take(self) -> bool:
        now_s = self._clock()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _ClaimUse(NamedTuple):
    names: tuple[str, ...]
    waits: bool


class _SessionUse:
    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.until_s = monotonic() + ttl_s
        self.claims: dict[int, _ClaimUse] = {}


class Usage:
    """The current usage of one principal."""

    def __init__(self, quotas: Quotas, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.set_quotas(quotas)
        self._sessions: dict[str, _SessionUse] = {}
        self._claim_count = self._waiter_count = 0
        self._streams = self._under_way = 0

    def set_quotas(self, quotas: Quotas) -> None:
        """Replace the limits; what is in use stays counted."""
        self.quotas = quotas
        rate, burst = quotas.requests_per_second, quotas.burst
        self._requests = _Bucket(rate, burst, self._clock)
        self._upkeep = _Bucket(rate, burst, self._clock)

    @contextmanager
    def request(self, is_upkeep: bool) -> Iterator[None]:
        """Count a request while it runs. Raises Problem if there are too many."""
        bucket = self._upkeep if is_upkeep else self._requests
        if not bucket.take():
            raise over_quota(f"more than {self.quotas.requests_per_second:g} requests per second")
        if self._under_way >= self.quotas.requests and not is_upkeep:
            raise over_quota(f"more than {self.quotas.requests} requests at the same time")
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def may_stream(self) -> None:
        """Raise Problem if there are too many streams; call it before the response begins."""
        if self._streams >= self.quotas.streams:
            raise over_quota(f"more than {self.quotas.streams} streams")

    @contextmanager
    def stream(self) -> Iterator[None]:
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def may_open(self, session: str) -> None:
        if session not in self._sessions and len(self._sessions) >= self.quotas.sessions:
            self._drop_expired()
            if len(self._sessions) >= self.quotas.sessions:
                raise over_quota(f"more than {self.quotas.sessions} sessions")

    def opened(self, session: str, ttl_ms: int) -> None:
        found = self._sessions.setdefault(session, _SessionUse(ttl_ms / 1000))
        found.until_s = self._clock() + found.ttl_s

    def renewed(self, session: str) -> None:
        found = self._sessions.get(session)
        if found is not None:
            found.until_s = self._clock() + found.ttl_s

    def may_enter(self, session: str, n: int) -> None:
        known = self._sessions.get(session)
        if known is not None and n in known.claims:
            return
        if self._claim_count >= self.quotas.claims or self._waiter_count >= self.quotas.waiters:
            self._drop_expired()
        if self._claim_count >= self.quotas.claims:
            raise over_quota(f"more than {self.quotas.claims} claims")
        if self._waiter_count >= self.quotas.waiters:
            raise over_quota(f"more than {self.quotas.waiters} waiting claims")

    def entered(self, session: str, n: int, names: tuple[str, ...], waits: bool) -> None:
        self.left(session, n)
        known = self._sessions.setdefault(session, _SessionUse(UNKNOWN_TTL_S))
        known.claims[n] = _ClaimUse(names, waits)
        self._claim_count += 1
        self._waiter_count += waits

    def granted(self, session: str, n: int) -> None:
        known = self._sessions.get(session)
        claim = known.claims.get(n) if known is not None else None
        if known is not None and claim is not None and claim.waits:
            known.claims[n] = claim._replace(waits=False)
            self._waiter_count -= 1

    def names_of(self, session: str, n: int) -> tuple[str, ...]:
        """Return the names that a claim entered for; () if this server does not know them."""
        known = self._sessions.get(session)
        claim = known.claims.get(n) if known is not None else None
        return claim.names if claim is not None else ()

    def left(self, session: str, n: int) -> None:
        known = self._sessions.get(session)
        claim = known.claims.pop(n, None) if known is not None else None
        if claim is not None:
            self._claim_count -= 1
            self._waiter_count -= claim.waits

    def ended(self, session: str) -> None:
        known = self._sessions.pop(session, None)
        if known is not None:
            self._claim_count -= len(known.claims)
            self._waiter_count -= sum(claim.waits for claim in known.claims.values())

    def _drop_expired(self) -> None:
        now_s = self._clock()
        for session in [name for name, known in self._sessions.items() if known.until_s < now_s]:
            self.ended(session)


class UsageTable:
    """The usage of each principal; beyond PRINCIPALS_MAX the oldest entry is dropped."""

    def __init__(self, quotas_of: Callable[[str], Quotas]) -> None:
        self._quotas_of = quotas_of
        self._usages: OrderedDict[str, Usage] = OrderedDict()

    def of(self, principal: str) -> Usage:
        found = self._usages.get(principal)
        if found is None:
            found = self._usages[principal] = Usage(self._quotas_of(principal))
            if len(self._usages) > PRINCIPALS_MAX:
                self._usages.popitem(last=False)
        return found

    def set_quotas(self) -> None:
        """Apply changed quotas."""
        for principal, usage in self._usages.items():
            usage.set_quotas(self._quotas_of(principal))
