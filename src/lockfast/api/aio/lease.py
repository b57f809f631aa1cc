"""What is held: leases, permits, terms, memberships. The twin of `blocking.lease`."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

from lockfast.api import settings
from lockfast.api.base import LeaseBase
from lockfast.api.settings import Seconds
from lockfast.core.commands import Adopt
from lockfast.core.modes import EXCLUSIVE, SHARED
from lockfast.errors import LeaseLostError, OutcomeUnknownError, UnsupportedError
from lockfast.flow import acquire as claims
from lockfast.flow.client import Core
from lockfast.flow.convert import convert, proclaim
from lockfast.flow.holding import Holding, LeaseState
from lockfast.flow.log import logger
from lockfast.runtimes.aio import AsyncioRuntime


class Lost:
    """The event of losing a lease."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def is_set(self) -> bool:
        """Whether the lease is lost, by the clock at this instant."""
        return self._lease.state is LeaseState.LOST

    async def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until the lease is lost (True), is released or `timeout` is over (False)."""
        signal = AsyncioRuntime().signal()
        self._lease._when_over(signal.set)
        try:
            await signal.wait(settings.timeout_to_ms(timeout))
        finally:
            self._lease._not_any_more(signal.set)
        return self.is_set()


class Lease(LeaseBase):
    """A lock that is held: what `acquire` returns.

    It is renewed in the background and ends at `deadline` unless that succeeds; from
    then on another holder may be at work, so hand `token` to whatever you write to.
    As a context manager it releases the lock at the end of the block, and the task inside
    is cancelled if the lease is lost.
    """

    def __init__(self, core: Core, holding: Holding) -> None:
        super().__init__(core, holding)
        self._blocks: list[_Block] = []

    @property
    def lost(self) -> Lost:
        """Set when the lease is lost: `is_set()`, `wait(timeout)`."""
        return Lost(self)

    def on_lost(self, callback: Callable[[Self], None]) -> None:
        """Call back when the lease is lost, on the event loop of this call."""
        loop = asyncio.get_running_loop()
        lease = weakref.ref(self)  # to wait for its loss must not keep it from being collected

        def fire() -> None:
            lost = lease()
            if lost is not None and lost.state is LeaseState.LOST:
                tell(loop, callback, lost)

        self._when_over(fire)

    async def release(self) -> None:
        """Give the lock back. Doing so twice is harmless.

        Raises LeaseLostError if it was lost before, OutcomeUnknownError if the store did
        not answer: it is tried again in the background, and the lease ends by itself.
        """
        if not self._leave_once():
            self.check()
        elif self._retained is not None and self._use is not None:
            await self._retained.give(self._use)
        else:
            await claims.release(self._core, self._holding)

    async def upgrade(self, *, timeout: Seconds | None = None) -> None:
        """Become the writer, with a new token; until then the lease stays what it is.

        From `.update()` this always succeeds once the readers have left. From `.read()`
        it raises DeadlockError at once if another reader is about to do the same.
        Raises AcquireTimeoutError after `timeout` seconds; the lease is kept.
        """
        self._refuse_conversion()
        await convert(self._core, self._holding, EXCLUSIVE, settings.timeout_to_ms(timeout))

    async def downgrade(self) -> None:
        """Become a reader, with the same token, and let other readers in."""
        self._refuse_conversion()
        await convert(self._core, self._holding, SHARED, None)

    async def adopt(self) -> None:
        """Answer for this lease from now on: the detector takes it for this thread's (task's)."""
        self.check()
        if self._use is not None:
            self._use.actor = self._core.actor()  # the grant itself has none
            return
        self._holding.actor = self._core.actor()
        session = self._holding.session
        assert session is not None
        await self._core.request(Adopt(session.id, self._holding.n, self._holding.actor))

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
            # The work is done and was protected; giving back goes on without us.
            logger.warning("%s", unknown)

    def _open_block(self) -> None:
        block = _Block(self)
        self._blocks.append(block)
        self._when_over(block.over)

    def _close_block(self, kind: type[BaseException] | None) -> bool:
        block = self._blocks.pop()
        self._not_any_more(block.over)
        return block.leave(kind)


class _Block:
    """A task inside `async with`: cancelled when the lease is lost, as by asyncio.timeout."""

    def __init__(self, lease: Lease) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease can guard a block of a task only")
        self._lease = lease
        self._task = task
        self._loop = task.get_loop()
        self._cancelling_before = task.cancelling()
        self._inside = True
        self._cancelled = False

    def over(self) -> None:
        """The lease is over; from any thread."""
        tell(self._loop, self._cancel)

    def _cancel(self) -> None:
        # On the loop, a moment later: look again whether it is still about this block.
        if self._inside and not self._cancelled and self._lease.state is LeaseState.LOST:
            self._cancelled = True
            self._task.cancel()

    def leave(self, kind: type[BaseException] | None) -> bool:
        """Whether it was our cancellation, and no other, that ended the block."""
        self._inside = False
        return (
            self._cancelled
            and self._task.uncancel() <= self._cancelling_before
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        )


def tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Have the loop call back, from any thread; a closed loop has nobody left to tell."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


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

    async def proclaim(self, value: str) -> None:
        """Change the value that others see as the leader's."""
        settings.check_text(value, "value", settings.METADATA_BYTES_MAX)
        await proclaim(self._core, self._holding, value)

    async def resign(self) -> None:
        """Give up the office, for the next candidate."""
        await self.release()


class Membership(Lease):
    """A place in a party: what `Party.join` returns. Leaving, or a crash, ends it."""

    async def leave(self) -> None:
        """Leave the party."""
        await self.release()
