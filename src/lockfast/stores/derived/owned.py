"""What a store object remembers about the sessions it opened.

Only the process that opened a session sends commands for it, so it knows which claim numbers were
used, and need not store that. It also remembers where its claims are, to release them without a
search. Every write checks what it uses of this: a wrong entry costs a request, never a lock.

A session is forgotten when it has not been renewed for ten minutes longer than its TTL. By then
it has expired, and no request from its time can still be under way.

An enter is *in doubt* from before it is sent until its reply arrives. If the reply is lost, the
next command for that claim number first determines whether the enter was executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from lockfast.core import numbers
from lockfast.core.commands import WAKE_LOOK, Leave, Place, Reply, Wake
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.errors import StoreUnavailableError
from lockfast.ports import Deliver, Signal
from lockfast.stores.derived.machine import Machine

TIDY_EVERY_MS: Final = 60_000
LOOKED_AT_MAX: Final = 16
"""Claims of one session that are looked at for one reason; keep-alives look at all."""


class OwnClaim(Protocol):
    """A claim of our own session, as each store remembers it."""

    @property
    def places(self) -> tuple[Place, ...]: ...


ClaimT = TypeVar("ClaimT", bound=OwnClaim)


@dataclass(eq=False)
class OwnSession(Generic[ClaimT]):
    """A session, as known to the store object that opened it."""

    id: str
    mutex: AbstractContextManager[Any]
    claims: dict[int, ClaimT] = field(default_factory=dict)
    """The claims of the session, as last reported."""
    doubted: set[int] = field(default_factory=set)
    """Claim numbers whose enter is in doubt."""
    highest: int = 0
    unseen: str = ""
    """The claim numbers that were used; see `core/numbers.py`."""
    opening: list[Signal] | None = None
    """Callers waiting while another caller opens the session."""
    deliver: Deliver | None = None
    """The callback for wakes, once a wake listener exists."""
    proved_up_to: int = 0
    """Where the next keep-alive resumes checking that the claims exist."""
    used_ms: int = 0
    """When it was created here or last renewed."""

    @property
    def was_opened(self) -> bool:
        raise NotImplementedError

    @property
    def ttl_ms(self) -> int:
        """The session's TTL; 0 if it was not opened here."""
        raise NotImplementedError

    def forgotten(self) -> None:
        """Give up what belongs to the session, because its store object forgets it."""

    def is_used(self, n: int) -> bool:
        """Return whether a command about this claim number was, or may have been, executed."""
        with self.mutex:
            return n in self.claims or numbers.is_seen(self, n)

    def finish(self, n: int) -> None:
        """Record, before a claim is released, that no further enter may use its number.

        An enter that is in doubt by now is found and removed by the release.
        """
        with self.mutex:
            numbers.see(self, n)

    def doubt(self, n: int, claim: ClaimT) -> ClaimT | None:
        """Record, before an enter is sent, that it may be executed; None if it must not be sent."""
        with self.mutex:
            if numbers.is_seen(self, n):
                return None
            self.doubted.add(n)
            self.claims[n] = claim
            return claim

    def undoubt(self, n: int, claim: ClaimT) -> None:
        """Record that the enter of `claim` was not executed, unless another was sent since."""
        with self.mutex:
            if n in self.doubted and self.claims.get(n) is claim:
                self.doubted.discard(n)
                del self.claims[n]

    def saw(self, n: int) -> None:
        """Record that a command about this claim number was executed."""
        with self.mutex:
            self.doubted.discard(n)
            numbers.see(self, n)

    def forget_below(self, lowest: int) -> None:
        """Forget all claim numbers below `lowest`; they will not be used again."""
        with self.mutex:
            numbers.forget_below(self, lowest)

    def left(self, n: int) -> None:
        with self.mutex:
            self.claims.pop(n, None)

    async def open_once(
        self,
        label: str,
        open_first: Callable[[], Awaitable[Reply]],
        make_signal: Callable[[], Signal],
        left_ms: Callable[[], int],
    ) -> Reply | None:
        """Open the session once, even if several callers ask for it concurrently.

        Return the reply, or None if another caller has opened it.
        """
        while not self.was_opened:
            signal = make_signal()
            with self.mutex:
                leads = self.opening is None
                if self.opening is None:
                    self.opening = []
                else:
                    self.opening.append(signal)
            if leads:
                try:
                    return await open_first()
                finally:
                    with self.mutex:
                        waiting, self.opening = self.opening or [], None
                    for other in waiting:
                        other.set()
            wait_ms = left_ms()
            if wait_ms <= 0 or not await signal.wait(wait_ms):
                raise StoreUnavailableError(label, "did not open the session in time")
        return None


SessionT = TypeVar("SessionT", bound=OwnSession[Any])


class OwnSessions(Generic[SessionT]):
    """The sessions of one store object. Thread-safe."""

    def __init__(
        self,
        make_session: Callable[[str, AbstractContextManager[Any]], SessionT],
        machine: Machine,
        salt_bits: int,
    ) -> None:
        self._make_session = make_session
        self._machine = machine
        self._mutex = machine.mutex()
        self._sessions: dict[str, SessionT] = {}
        self._tidy_at_ms = 0
        self._salt = machine.random_bits(salt_bits)
        self._salt_bits = salt_bits
        self._arrival = 0

    def get(self, session: str) -> SessionT | None:
        return self._sessions.get(session)

    def all(self) -> list[SessionT]:
        with self._mutex:
            return list(self._sessions.values())

    def begin(self, session: str) -> SessionT:
        with self._mutex:
            found = self._sessions.get(session)
            if found is not None:
                return found
            found = self._sessions[session] = self._make_session(session, self._mutex)
            now_ms = found.used_ms = self._machine.now_ms()
            expired: list[SessionT] = []
            if now_ms >= self._tidy_at_ms:
                self._tidy_at_ms = now_ms + TIDY_EVERY_MS
                expired = [
                    one
                    for one in self._sessions.values()
                    if one.used_ms + one.ttl_ms + ENDED_KEPT_MS < now_ms
                ]
            for one in expired:
                del self._sessions[one.id]
        for one in expired:
            one.forgotten()
        return found

    def renewed(self, session: SessionT) -> None:
        """Record a keep-alive."""
        session.used_ms = self._machine.now_ms()

    def forget(self, session: str) -> None:
        with self._mutex:
            self._sessions.pop(session, None)

    def next_arrival(self, at_least: int) -> int:
        """Return a number that increases with every claim; other store objects rarely draw it."""
        with self._mutex:
            self._arrival = max(self._arrival + 1, at_least)
            return (self._arrival << self._salt_bits) + self._salt

    def look_again(self, command: Leave) -> None:
        """Let claims of this process be looked at after a release that found its claim gone.

        An earlier attempt of it may have been executed and granted one of them. That step would
        have told it, but its reply was lost, or its caller was interrupted.
        """
        names = {place[:2] for place in command.places}
        for session in self.all():
            with session.mutex:
                waiting = [
                    n
                    for n, claim in sorted(session.claims.items())
                    if any(place[:2] in names for place in claim.places)
                ]
            self.deliver(Wake("", session.id, n, WAKE_LOOK) for n in waiting[:LOOKED_AT_MAX])

    def deliver(self, wakes: Iterable[Wake]) -> None:
        """Wake sessions of this process; call after the commit."""
        for wake in wakes:
            session = self.get(wake.session)
            deliver = session.deliver if session is not None else None
            if deliver is not None:
                deliver(wake)
