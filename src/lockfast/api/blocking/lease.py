"""What is held: leases, permits, terms, memberships. The twin of `aio.lease`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

from lockfast.api import settings
from lockfast.api.base import LeaseBase
from lockfast.api.settings import Seconds
from lockfast.core.commands import Adopt
from lockfast.core.modes import EXCLUSIVE, SHARED
from lockfast.errors import LeaseLostError, OutcomeUnknownError, UnsupportedError
from lockfast.flow import acquire as claims
from lockfast.flow.convert import convert, proclaim
from lockfast.flow.holding import LeaseState
from lockfast.flow.log import logger
from lockfast.runtimes.threads import ThreadsRuntime, run


class Lost:
    """The event of losing a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lease is lost, by the clock at this instant."""
        return self._lease.state is LeaseState.LOST

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost (True), is released or `timeout` is over (False)."""
        signal = ThreadsRuntime().signal()
        self._lease._when_over(signal.set)
        try:
            signal.wait_blocking(settings.timeout_to_ms(timeout))
        finally:
            self._lease._not_any_more(signal.set)
        return self.is_set()


class Lease(LeaseBase):
    """A lock that is held: what `acquire` returns.

    It is renewed in the background and ends at `deadline` unless that succeeds; from
    then on another holder may be at work, so hand `token` to whatever you write to.
    As a context manager it releases the lock at the end of the block.
    """

    @property
    def lost(self) -> Lost:
        """Set when the lease is lost: `is_set()`, `wait(timeout)`."""
        return Lost(self)

    def on_lost(self, callback: Callable[[Self], None]) -> None:
        """Call back when the lease is lost, on a thread of its own."""
        lease = weakref.ref(self)  # to wait for its loss must not keep it from being collected

        def fire() -> None:
            lost = lease()
            if lost is not None and lost.state is LeaseState.LOST:

                async def call(lost: Self = lost) -> None:
                    callback(lost)

                ThreadsRuntime().spawn(call, "lockfast-on-lost")

        self._when_over(fire)

    def release(self) -> None:
        """Give the lock back. Doing so twice is harmless.

        Raises LeaseLostError if it was lost before, OutcomeUnknownError if the store did
        not answer: it is tried again in the background, and the lease ends by itself.
        """
        if not self._leave_once():
            self.check()
        elif self._retained is not None and self._use is not None:
            run(self._retained.give(self._use))
        else:
            run(claims.release(self._core, self._holding))

    def upgrade(self, *, timeout: Seconds | None = None) -> None:
        """Become the writer, with a new token; until then the lease stays what it is.

        From `.update()` this always succeeds once the readers have left. From `.read()`
        it raises DeadlockError at once if another reader is about to do the same.
        Raises AcquireTimeoutError after `timeout` seconds; the lease is kept.
        """
        self._refuse_conversion()
        run(convert(self._core, self._holding, EXCLUSIVE, settings.timeout_to_ms(timeout)))

    def downgrade(self) -> None:
        """Become a reader, with the same token, and let other readers in."""
        self._refuse_conversion()
        run(convert(self._core, self._holding, SHARED, None))

    def adopt(self) -> None:
        """Answer for this lease from now on: the detector takes it for this thread's (task's)."""
        self.check()
        if self._use is not None:
            self._use.actor = self._core.actor()  # the grant itself has none
            return
        self._holding.actor = self._core.actor()
        session = self._holding.session
        assert session is not None
        run(self._core.request(Adopt(session.id, self._holding.n, self._holding.actor)))

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.release()
        except LeaseLostError as lost:
            if error is None:
                raise
            self._chain(error, lost)
        except OutcomeUnknownError as unknown:
            # The work is done and was protected; giving back goes on without us.
            logger.warning("%s", unknown)


class Permit(Lease):
    """Permits of a semaphore that are held: what `Semaphore.acquire` returns."""

    @property
    def token(self) -> NoReturn:
        """A permit has none: one number cannot tell that 10 is dead and 11 alive."""
        raise UnsupportedError(
            f"the token of a permit of {self.name!r}",
            "several hold a semaphore at once, so no order of numbers tells which are over",
            "use a lock where writes must be fenced",
        )

    @property
    def permits(self) -> int:
        """How many permits it holds."""
        return self._holding.ask.places[0].weight


class Term(Lease):
    """A term of office: what `Election.campaign` returns. Its token is the epoch."""

    @property
    def epoch(self) -> int:
        """The token of this term: higher than that of every earlier leader."""
        return self.token

    def proclaim(self, value: str) -> None:
        """Change the value that others see as the leader's."""
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        run(proclaim(self._core, self._holding, value))

    def resign(self) -> None:
        """Give up the office, for the next candidate."""
        self.release()


class Membership(Lease):
    """A place in a party: what `Party.join` returns. Leaving, or a crash, ends it."""

    def leave(self) -> None:
        """Leave the party."""
        self.release()
