"""Send commands to the ensemble, for callers and keepers alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from lockfast.core import commands as c
from lockfast.core.commands import Command, Reply
from lockfast.core.reasons import EXPIRED, UNKNOWN_SESSION
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.ports import Signal
from lockfast.stores.endings import ending_of
from lockfast.stores.zookeeper import sessions
from lockfast.stores.zookeeper.layout import UnreadableError
from lockfast.stores.zookeeper.links import Links
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.reading import Reader
from lockfast.stores.zookeeper.steps import Context, Outcome, Requests, Step, Wait, settle
from lockfast.stores.zookeeper.transport import LinkLostError, Multi, Set
from lockfast.stores.zookeeper.view import Instant

OF_OWN_SESSIONS = (
    c.Open, c.Enter, c.Leave, c.Convert, c.Proclaim, c.Adopt, c.Renew, c.Close, c.Look, c.Claims,
)  # fmt: skip


class ZooKeeperWire:
    """Executes each command as one multi."""

    def __init__(
        self,
        context: Context,
        links: Links,
        wait: Wait,
        pause: Callable[[int], Awaitable[None]],
        signal: Callable[[], Signal],
    ) -> None:
        self.context = context
        self.links = links
        self._wait = wait
        self._pause = pause
        self._signal = signal

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_ms = self.context.network.now_ms() + timeout_ms
        return (await self.step(command, until_ms)).reply

    async def step(
        self, command: Command, until_ms: int, instant: Instant | None = None
    ) -> Outcome:
        """Execute a command at a given instant; used for comparison with the lock table."""
        try:
            return await self._step(command, until_ms, instant)
        except UnreadableError as error:
            raise StoreError(
                self.context.label, f"cannot be read: {error}", "run `lockfast doctor`"
            ) from None
        except LinkLostError:
            own = self.context.own.get(getattr(command, "session", ""))
            if own is None or not isinstance(command, OF_OWN_SESSIONS):
                raise StoreUnavailableError(self.context.label, "ended the connection") from None
            own.end(EXPIRED)
            return Outcome(c.Ended(own.ended, own.by))

    async def common(self, until_ms: int) -> Requests:
        """Return requests on the link that belongs to none of our sessions."""
        link = await self.links.common(self._wait, until_ms)
        requests = Requests(self.context, link, self._wait, self._pause, until_ms)
        if not self.context.has_heard:
            # Only the answer to a write reveals the leader's clock.
            await requests.call(Multi((Set(self.context.paths.root, b""),)))
        return requests

    async def _step(self, command: Command, until_ms: int, instant: Instant | None) -> Outcome:
        if not isinstance(command, OF_OWN_SESSIONS):
            return await self._of_others(command, until_ms, instant)
        own = self.context.own.begin(command.session)
        opening = command if isinstance(command, c.Open) else getattr(command, "open", None)
        if opening is not None and own.row is None and not own.ended:
            opened = await self._open(own, opening, until_ms, instant)
            if isinstance(command, c.Open) or not isinstance(opened, c.Done):
                return Outcome(opened)
        if own.ended:
            if isinstance(command, c.Close):
                return Outcome(c.Done(found=False))
            return Outcome(c.Ended(own.ended, own.by))
        if own.row is None or own.link is None:
            if isinstance(command, c.Close | c.Look | c.Claims):
                return await self._of_others(command, until_ms, instant)
            return Outcome(c.Ended(UNKNOWN_SESSION))
        requests = Requests(self.context, own.link, self._wait, self._pause, until_ms)
        if isinstance(command, c.Open):
            return Outcome(await sessions.opened_before(requests, own))
        if isinstance(command, c.Renew):
            return await sessions.renew(requests, own, command, instant)
        if isinstance(command, c.Close):
            return await self._close(own, requests, until_ms, instant)
        if isinstance(command, c.Look):
            return await sessions.look(requests, command, instant)
        if isinstance(command, c.Enter):
            command = command._replace(open=None)
        return await self._run(requests, command, instant)

    async def _close(
        self, own: OwnSession, requests: Requests, until_ms: int, instant: Instant | None
    ) -> Outcome:
        try:
            return await sessions.close(requests, own, instant)
        finally:
            own.end(EXPIRED)

    async def _of_others(self, command: Command, until_ms: int, instant: Instant | None) -> Outcome:
        requests = await self.common(until_ms)
        if isinstance(command, c.Look | c.Claims):
            return await self._run(requests, command, instant)
        if isinstance(command, c.Close | c.Expel | c.RevokeSession):
            return (await sessions.end(requests, [ending_of(command)], instant))[1]
        if isinstance(command, c.Sessions):
            return Outcome(await Reader(requests, instant).sessions(command))
        if isinstance(command, c.Listing):
            return Outcome(await Reader(requests, instant).listing(command))
        return await self._run(requests, command, instant)

    async def _run(self, requests: Requests, command: Command, instant: Instant | None) -> Outcome:
        step = Step(requests, command, instant)
        outcome = await step.run()
        if not step.unsettled:
            return outcome
        try:
            rest = await settle(requests, step.unsettled, instant)
        except (StoreUnavailableError, OutcomeUnknownError):
            return outcome  # the command was executed; waiting claims settle the rest
        return outcome._replace(
            wakes=[*outcome.wakes, *rest.wakes], events=[*outcome.events, *rest.events]
        )

    async def _open(
        self, own: OwnSession, command: c.Open, until_ms: int, instant: Instant | None
    ) -> Reply:
        """Open a session once, even if several callers ask for it concurrently."""
        network = self.context.network
        while own.row is None and not own.ended:
            signal = self._signal()
            with own.mutex:
                leads = own.opening is None
                if own.opening is None:
                    own.opening = []
                else:
                    own.opening.append(signal)
            if leads:
                try:
                    return await self._open_first(own, command, until_ms, instant)
                finally:
                    with own.mutex:
                        waiting, own.opening = own.opening or [], None
                    for other in waiting:
                        other.set()
            left_ms = until_ms - network.now_ms()
            if left_ms <= 0 or not await signal.wait(left_ms):
                raise StoreUnavailableError(self.context.label, "did not open the session in time")
        return c.Ended(own.ended, own.by) if own.ended else c.Done()

    async def _open_first(
        self, own: OwnSession, command: c.Open, until_ms: int, instant: Instant | None
    ) -> Reply:
        timeout_ms = sessions.link_timeout_ms(command.ttl_ms)
        link = await self.links.of_session(own, timeout_ms, self._wait, until_ms)
        requests = Requests(self.context, link, self._wait, self._pause, until_ms)
        try:
            return await sessions.open_session(requests, own, command, instant)
        except LinkLostError:
            own.link = None  # nothing was opened on it, or it was lost with the link
            raise StoreUnavailableError(self.context.label, "ended the connection") from None

    def close(self) -> None:
        """Do nothing: links belong to sessions, and to the store."""
