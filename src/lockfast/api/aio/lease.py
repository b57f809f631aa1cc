"""Leases, permits, terms and memberships. The counterpart of `blocking.lease`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from lockfast.api import settings
from lockfast.api.base import LeaseBase
from lockfast.api.settings import Seconds
from lockfast.api.storage import AsyncStorage, Storage
from lockfast.core.commands import Adopt
from lockfast.core.modes import EXCLUSIVE, SHARED
from lockfast.errors import LeaseLostError, OutcomeUnknownError, UnsupportedError
from lockfast.flow import acquire as claims
from lockfast.flow import fixed
from lockfast.flow.client import Core
from lockfast.flow.convert import convert, proclaim
from lockfast.flow.holding import Holding, LeaseState
from lockfast.flow.log import logger

O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


class Lost:
    """An event that is set when a lease is lost."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Return True if the lease is lost now, by the clock."""
        return self._lease.state is LeaseState.LOST

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost (True), is released or `timeout` elapses (False)."""
        signal = self._lease._core.runtime.signal()
        self._lease._on_end(signal.set)
        try:
            await signal.wait(settings.timeout_to_ms(timeout))
        finally:
            self._lease._remove_on_end(signal.set)
        return self.is_set()


class Lease(LeaseBase):
    """A held lock, as returned by `acquire`.

    The keeper renews the lease in the background. If renewal fails, the lease ends at
    `deadline`, and then another client may hold the lock, so send `token` with each write.
    As a context manager it releases the lock at the end of the block, and cancels the
    task inside the block if the lease is lost.
    """

    def __init__(self, core: Core, holding: Holding) -> None:
        super().__init__(core, holding)
        self._blocks: list[_Block] = []

    @property
    def lost(self) -> Lost:
        """Set when the lease is lost: `is_set()`, `wait(timeout)`."""
        return Lost(self)

    def on_lost(self, callback: Callable[[Self], None]) -> None:
        """Call `callback` when the lease is lost, on the event loop that runs now."""
        loop = asyncio.get_running_loop()
        lease = weakref.ref(self)  # waiting for the loss must not keep the lease alive

        def fire() -> None:
            lost = lease()
            if lost is not None and lost.state is LeaseState.LOST:
                tell(loop, callback, lost)

        self._on_end(fire)

    async def release(self) -> None:
        """Release the lock. Calling it again has no effect.

        Raises LeaseLostError if the lease was already lost. Raises OutcomeUnknownError if
        the store did not reply; the keeper then retries until the lease expires.
        """
        if not self._leave_once():
            self.check()
        elif self._retained is not None and self._use is not None:
            await self._retained.release(self._use)
        else:
            await claims.release(self._core, self._holding)

    async def extend(self, seconds: Seconds) -> None:
        """Move the end of a lease with `renew=False` by `seconds`, after asking the store.

        Raises LeaseLostError if the lease is lost, and UnsupportedError for a lease that is
        renewed in the background: it needs no extension.
        """
        await fixed.extend(self._core, self._holding, settings.to_ms(seconds, "seconds"))

    async def upgrade(self, *, timeout: Seconds | None = None) -> None:
        """Become the writer, with a new token. The lease keeps its mode while it waits.

        From `.update()` this succeeds as soon as the readers have released. From `.read()`
        it raises DeadlockError immediately if another reader is already upgrading.
        Raises AcquireTimeoutError after `timeout` seconds; the lease stays held.
        """
        self._refuse_conversion()
        await convert(self._core, self._holding, EXCLUSIVE, settings.timeout_to_ms(timeout))

    async def downgrade(self) -> None:
        """Become a reader, with the same token, and let other readers in."""
        self._refuse_conversion()
        await convert(self._core, self._holding, SHARED, None)

    async def adopt(self) -> None:
        """Make the current thread or task the owner of this lease for deadlock detection."""
        self.check()
        if self._use is not None:
            self._use.actor = self._core.actor()  # the shared claim has no actor
            return
        self._holding.actor = self._core.actor()
        session = self._holding.session
        assert session is not None
        await self._core.request(Adopt(session.id, self._holding.n, self._holding.actor))

    @overload
    async def execute_with_fence(
        self,
        storage: AsyncStorage[O, R],
        operation: O,
        *,
        resource: str | None = None,
        once: bool = False,
    ) -> R: ...

    @overload
    async def execute_with_fence(
        self,
        storage: Storage[O, R],
        operation: O,
        *,
        resource: str | None = None,
        once: bool = False,
    ) -> R: ...

    async def execute_with_fence(
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
        passes a single time. A guard for blocking programs runs in a worker
        thread, and the operation with it.

        Raises StaleTokenError, and does nothing, if a newer token has been admitted; before
        that, LeaseLostError if the lease is known to be lost.
        """
        name, is_reader = self._fence(storage, resource)
        call: Callable[[], Any] = functools.partial(
            storage.execute, name, self.token, operation, shared=is_reader, once=once
        )
        awaited = inspect.iscoroutinefunction(storage.execute)
        result: R = await (call() if awaited else asyncio.to_thread(call))
        return self._executed(storage, result, "declare it with `async def`")

    async def __aenter__(self) -> Self:
        self.check()
        self._open_block()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        ours = self._close_block(kind)
        try:
            await self.release()
        except LeaseLostError as lost:
            if error is None or ours:
                raise lost from error
            self._chain(error, lost)
        except OutcomeUnknownError as unknown:
            # The block ran under the lock; the keeper retries the release in the background.
            logger.warning("%s", unknown)

    def _open_block(self) -> None:
        block = _Block(self)
        self._blocks.append(block)
        self._on_end(block.ended)

    def _close_block(self, kind: type[BaseException] | None) -> bool:
        block = self._blocks.pop()
        self._remove_on_end(block.ended)
        return block.leave(kind)


class _Block:
    """Cancels the task inside `async with` when its lease is lost, as asyncio.timeout does."""

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("`async with` on a lease must run inside an asyncio task")
        self._lease = lease
        self._task = task
        self._loop = task.get_loop()
        self._cancelling_before = task.cancelling()
        self._inside = True
        self._cancelled = False

    def ended(self) -> None:
        """Handle the end of the lease. Called from any thread."""
        tell(self._loop, self._cancel)

    def _cancel(self) -> None:
        # Runs later on the loop: the task may have left the block by then, so check again.
        if self._inside and not self._cancelled and self._lease.state is LeaseState.LOST:
            self._cancelled = True
            self._task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """Return True if only our own cancellation ended the block."""
        self._inside = False
        return (
            self._cancelled
            and self._task.uncancel() <= self._cancelling_before
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        )


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Schedule `callback` on the loop from any thread; do nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


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

    async def proclaim(self, value: str) -> None:
        """Change the leader's value that others read."""
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        await proclaim(self._core, self._holding, value)

    async def resign(self) -> None:
        """Give up leadership; the next candidate is elected."""
        await self.release()


class Membership(Lease):
    """Membership of a party, as returned by `Party.join`. Ends on `leave()` or a crash."""

    async def leave(self) -> None:
        """Leave the party."""
        await self.release()
