"""Send commands to the ensemble, for callers and keepers alike."""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core.commands import Command, Reply
from lockfast.core.reasons import EXPIRED, UNKNOWN_SESSION
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.derived.endings import ending_of
from lockfast.stores.derived.steps import Outcome, run_and_settle
from lockfast.stores.derived.stored import UnreadableError
from lockfast.stores.zookeeper import journal, sessions
from lockfast.stores.zookeeper.context import Context, Requests
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.reading import Reader
from lockfast.stores.zookeeper.steps import Step
from lockfast.stores.zookeeper.transport import Link, LinkLostError, Multi, Set, Waiting

OF_OWN_SESSIONS = (
    c.Open, c.Enter, c.Leave, c.Convert, c.Proclaim, c.Adopt, c.Renew, c.Close, c.Look, c.Claims,
    c.Watch,
)  # fmt: skip


class ZooKeeperWire:
    """Executes each command as one multi."""

    def __init__(self, context: Context, waiting: Waiting, *, takes_turns: bool) -> None:
        self.context = context
        self._waiting = waiting
        self._takes_turns = takes_turns

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_ms = self.context.network.now_ms() + timeout_ms
        return (await self.step(command, until_ms)).reply

    async def step(self, command: Command, until_ms: int) -> Outcome:
        try:
            return await self._step(command, until_ms)
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

    def _requests(self, link: Link, until_ms: int) -> Requests:
        return Requests(self.context, link, self._waiting, until_ms, takes_turns=self._takes_turns)

    async def common(self, until_ms: int) -> Requests:
        """Return requests on the link that belongs to none of our sessions."""
        link = await self.context.links.common(self._waiting, until_ms)
        requests = self._requests(link, until_ms)
        if not self.context.clock.has_heard:
            # Only the answer to a write reveals the leader's clock.
            await requests.call(Multi((Set(self.context.paths.root, b""),)))
        return requests

    async def _step(self, command: Command, until_ms: int) -> Outcome:
        if not isinstance(command, OF_OWN_SESSIONS):
            return await self._of_others(command, await self.common(until_ms))
        own = self.context.own.begin(command.session)
        opening = command if isinstance(command, c.Open) else getattr(command, "open", None)
        if opening is not None and not own.was_opened:
            opened = await own.open_once(
                self.context.label,
                lambda: self._open(own, opening, until_ms),
                self._waiting.signal,
                lambda: until_ms - self.context.network.now_ms(),
            )
            is_open = opened is None or isinstance(opened, c.Done)
            if opened is not None and (isinstance(command, c.Open) or not is_open):
                return Outcome(opened)
        if own.ended:
            if isinstance(command, c.Close):
                return Outcome(c.Done(found=False))
            return Outcome(c.Ended(own.ended, own.by))
        if own.row is None or own.link is None:
            if isinstance(command, c.Close | c.Look | c.Claims):
                return await self._of_others(command, await self.common(until_ms))
            return Outcome(c.Ended(UNKNOWN_SESSION))
        requests = self._requests(own.link, until_ms)
        if isinstance(command, c.Open):
            return Outcome(await sessions.opened_before(requests, own))
        if isinstance(command, c.Renew):
            return await sessions.renew(requests, own, command)
        if isinstance(command, c.Close):
            return await sessions.close(requests, own)
        if isinstance(command, c.Look):
            return await sessions.look(requests, command)
        if isinstance(command, c.Watch):
            return Outcome(await journal.watch(requests, own, command))
        if isinstance(command, c.Enter):
            command = command._replace(open=None)
        return await self._run(requests, command)

    async def _of_others(self, command: Command, requests: Requests) -> Outcome:
        if isinstance(command, c.Close | c.Expel | c.RevokeSession):
            return await sessions.end(requests, [ending_of(command)])
        if isinstance(command, c.Sessions):
            return Outcome(await Reader(requests).sessions(command))
        if isinstance(command, c.Listing):
            return Outcome(await Reader(requests).listing(command))
        if isinstance(command, c.Events):
            return Outcome(await journal.read(requests, command))
        return await self._run(requests, command)

    async def _run(self, requests: Requests, command: Command) -> Outcome:
        step = Step(requests, command)
        outcome = await run_and_settle(step, lambda settle: Step(requests, settle))
        if isinstance(command, c.Leave) and outcome.reply == c.Done(found=False):
            self.context.own.look_again(command)
        return outcome

    async def _open(self, own: OwnSession, command: c.Open, until_ms: int) -> Reply:
        timeout_ms = sessions.link_timeout_ms(command.ttl_ms)
        link = await self.context.links.of_session(own, timeout_ms, self._waiting, until_ms)
        try:
            return await sessions.open_session(self._requests(link, until_ms), own, command)
        except LinkLostError:
            link.close()
            own.link = None  # nothing was opened on it, or it was lost with the link
            raise StoreUnavailableError(self.context.label, "ended the connection") from None

    def close(self) -> None:
        """Do nothing: links belong to sessions, and to the store."""
