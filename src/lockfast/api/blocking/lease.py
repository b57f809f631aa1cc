"""Leases, permits, terms and memberships. The counterpart of `aio.lease`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from lockfast.api import settings
from lockfast.api.base import LeaseBase
from lockfast.api.settings import Seconds
from lockfast.api.storage import Storage
from lockfast.core.commands import Adopt
from lockfast.core.modes import EXCLUSIVE, SHARED
from lockfast.errors import LeaseLostError, OutcomeUnknownError, UnsupportedError
from lockfast.flow import acquire as claims
from lockfast.flow import fixed
from lockfast.flow.convert import convert, proclaim
from lockfast.flow.holding import LeaseState
from lockfast.flow.log import logger
from lockfast.runtimes.threads import ThreadsRuntime, run

O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


class Lost:
    """An event that is set when a lease is lost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Return True if the lease is lost now, by the clock."""
        return self._lease.state is LeaseState.LOST

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost (True), is released or `timeout` elapses (False)."""
        signal = self._lease._core.runtime.signal()
        self._lease._on_end(signal.set)
        try:
            run(signal.wait(settings.timeout_to_ms(timeout)))
        finally:
            self._lease._remove_on_end(signal.set)
        return self.is_set()


class Lease(LeaseBase):
    """A held lock, as returned by `acquire`.

    The keeper renews the lease in the background. If renewal fails, the lease ends at
    `deadline`, and then another client may hold the lock, so send `token` with each write.
    As a context manager it releases the lock at the end of the block.
    """

    @property
    def lost(self) -> Lost:
        """Set when the lease is lost: `is_set()`, `wait(timeout)`."""
        return Lost(self)

    def on_lost(self, callback: Callable[[Self], None]) -> None:
        """Call `callback` when the lease is lost, on a new thread."""
        lease = weakref.ref(self)  # waiting for the loss must not keep the lease alive

        def fire() -> None:
            lost = lease()
            if lost is not None and lost.state is LeaseState.LOST:

                async def call(lost: Self = lost) -> None:
                    callback(lost)

                ThreadsRuntime().spawn(call, "lockfast-on-lost")

        self._on_end(fire)

    def release(self) -> None:
        """Release the lock. Calling it again has no effect.

        Raises LeaseLostError if the lease was already lost. Raises OutcomeUnknownError if
        the store did not reply; the keeper then retries until the lease expires.
        """
        if not self._leave_once():
            self.check()
        elif self._retained is not None and self._use is not None:
            run(self._retained.release(self._use))
        else:
            run(claims.release(self._core, self._holding))

    def extend(self, seconds: Seconds) -> None:
        """Move the end of a lease with `renew=False` by `seconds`, after asking the store.

        Raises LeaseLostError if the lease is lost, and UnsupportedError for a lease that is
        renewed in the background: it needs no extension.
        """
        run(fixed.extend(self._core, self._holding, settings.to_ms(seconds, "seconds")))

    def upgrade(self, *, timeout: Seconds | None = None) -> None:
        """Become the writer, with a new token. The lease keeps its mode while it waits.

        From `.update()` this succeeds as soon as the readers have released. From `.read()`
        it raises DeadlockError immediately if another reader is already upgrading.
        Raises AcquireTimeoutError after `timeout` seconds; the lease stays held.
        """
        self._refuse_conversion()
        run(convert(self._core, self._holding, EXCLUSIVE, settings.timeout_to_ms(timeout)))

    def downgrade(self) -> None:
        """Become a reader, with the same token, and let other readers in."""
        self._refuse_conversion()
        run(convert(self._core, self._holding, SHARED, None))

    def adopt(self) -> None:
        """Make the current thread or task the owner of this lease for deadlock detection."""
        self.check()
        if self._use is not None:
            self._use.actor = self._core.actor()  # the shared claim has no actor
            return
        self._holding.actor = self._core.actor()
        session = self._holding.session
        assert session is not None
        run(self._core.request(Adopt(session.id, self._holding.n, self._holding.actor)))

    def execute_with_fence(
        self,
        storage: Storage[O, R],
        operation: O,
        *,
        resource: str | None = None,
        once: bool = False,
    ) -> R:
        """Execute an operation in a storage that refuses it if a later lease has been used there.

        `storage` is a guard of `lockfast.guards`. It checks the token and executes
        `operation` in one step; its documentation says what the operation receives and what is
        returned. `resource` is the name to check, by default the lock's. With `once`, the token
        passes a single time.

        Raises StaleTokenError, and does nothing, if a newer token has been admitted; before
        that, LeaseLostError if the lease is known to be lost.
        """
        name, is_reader = self._fence(storage, resource)
        result = storage.execute(name, self.token, operation, shared=is_reader, once=once)
        return self._executed(storage, result, "use a guard for blocking programs")

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
            # The block ran under the lock; the keeper retries the release in the background.
            logger.warning("%s", unknown)


class Permit(Lease):
    """Held permits of a semaphore, as returned by `Semaphore.acquire`."""

    @property
    def token(self) -> NoReturn:
        """Raise UnsupportedError: permits have no fencing token.

        Several permits are held at once, and a guard that knows only the highest token
        cannot tell which of the older holders have lost theirs.
        """
        raise UnsupportedError(
            f"the token of a permit of {self.name!r}",
            "several clients hold a semaphore at once, so an ordered number cannot fence them",
            "use a lock if writes must be fenced",
        )

    @property
    def permits(self) -> int:
        """The number of permits held."""
        return self._holding.ask.places[0].weight


class Term(Lease):
    """A term of leadership, as returned by `Election.campaign`. Its token is the epoch."""

    @property
    def epoch(self) -> int:
        """The token of this term, higher than the epoch of every earlier leader."""
        return self.token

    def proclaim(self, value: str) -> None:
        """Change the leader's value that others read."""
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        run(proclaim(self._core, self._holding, value))

    def resign(self) -> None:
        """Give up leadership; the next candidate is elected."""
        self.release()


class Membership(Lease):
    """Membership of a party, as returned by `Party.join`. Ends on `leave()` or a crash."""

    def leave(self) -> None:
        """Leave the party."""
        self.release()
