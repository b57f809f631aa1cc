"""Commands to the cluster and replies back, for callers and keepers alike."""

from __future__ import annotations

from collections.abc import Callable

from lockfast.core import commands as c
from lockfast.core.commands import Command, Reply
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.stores.etcd import doubt, journal
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.layout import UnreadableError
from lockfast.stores.etcd.reading import Reader
from lockfast.stores.etcd.sessions import Sessions, ending_of
from lockfast.stores.etcd.shortcuts import Shortcut
from lockfast.stores.etcd.steps import Context, Outcome, Step, settle
from lockfast.stores.etcd.view import Instant, Known


class EtcdWire:
    """Each command is worked out here and carried out by transactions of the cluster's."""

    def __init__(
        self,
        gateway: Gateway,
        context: Context,
        on_close: Callable[[EtcdWire], None] = lambda wire: None,
    ) -> None:
        self.gateway = gateway
        self.context = context
        self._on_close = on_close

    @property
    def connections(self) -> int:
        """How many were made: a new one may lead to another member."""
        return getattr(self.gateway.transport, "connections", 0)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return (await self.step(command, self.gateway.until_ms(timeout_ms))).reply

    async def step(
        self, command: Command, until_ms: int, instant: Instant | None = None
    ) -> Outcome:
        """As send, at an instant of our choice: for the comparison with the lock table."""
        try:
            return await self._step(command, until_ms, instant)
        except UnreadableError as error:
            raise StoreError(
                self.gateway.cluster.label, f"cannot be read: {error}", "run `lockfast doctor`"
            ) from None

    async def _step(self, command: Command, until_ms: int, instant: Instant | None) -> Outcome:
        gateway, context = self.gateway, self.context
        if isinstance(command, c.Enter | c.Leave):
            own = context.own.get(command.session)
            if own is not None and command.n in own.doubted:
                await doubt.resolve(gateway, own, command.n, until_ms)
        if isinstance(command, c.Enter):
            return await self._enter(command, until_ms, instant)
        if isinstance(command, c.Leave):
            return await self._leave(command, until_ms, instant)
        if isinstance(command, c.Open):
            return Outcome(await Sessions(gateway, context, until_ms, instant).open(command))
        if isinstance(command, c.Renew):
            return await Sessions(gateway, context, until_ms, instant).renew(command)
        if isinstance(command, c.Close | c.Expel | c.RevokeSession):
            sessions = Sessions(gateway, context, until_ms, instant)
            (found,), wakes = await sessions.end([ending_of(command)])
            return Outcome(c.Done(found), wakes)
        if isinstance(command, c.Watch):
            if command.on:
                await journal.begin(gateway, until_ms, instant)
            return Outcome(await Sessions(gateway, context, until_ms, instant).watch(command))
        if isinstance(command, c.Events):
            return Outcome(await journal.read(gateway, command, until_ms, instant))
        if isinstance(command, c.Claims):
            return Outcome(await Reader(gateway, context, until_ms, instant).claims(command))
        if isinstance(command, c.Sessions):
            return Outcome(await Reader(gateway, context, until_ms, instant).sessions(command))
        if isinstance(command, c.Listing):
            return Outcome(await Reader(gateway, context, until_ms, instant).listing(command))
        return await self._run(command, until_ms, instant)

    async def _enter(self, command: c.Enter, until_ms: int, instant: Instant | None) -> Outcome:
        gateway, context = self.gateway, self.context
        if command.open is not None:
            opened = await self._open(command.open, until_ms, instant)
            if not isinstance(opened, c.Done):
                return Outcome(opened)
            command = command._replace(open=None)
        own = context.own.get(command.session)
        if own is not None and command.lock_delay_ms:
            own.uses_lock_delay = True
        if own is None:
            return await self._run(command, until_ms, instant)
        done = await Shortcut(gateway, context, own, until_ms, instant).enter(command)
        if isinstance(done, Outcome):
            return done
        return await self._run(command, until_ms, instant, done)

    async def _leave(self, command: c.Leave, until_ms: int, instant: Instant | None) -> Outcome:
        own, done = self.context.own.get(command.session), None
        if own is not None:
            shortcut = Shortcut(self.gateway, self.context, own, until_ms, instant)
            done = await shortcut.leave(command)
        if isinstance(done, Outcome):
            return done
        return await self._run(command, until_ms, instant, done)

    async def _open(self, command: c.Open, until_ms: int, instant: Instant | None) -> Reply:
        """Open a session once, however many callers ask for it at the same time."""
        gateway, own = self.gateway, self.context.own.begin(command.session)
        while not own.was_opened:
            signal = gateway.transport.signal()
            with own.mutex:
                leads = own.opening is None
                if own.opening is None:
                    own.opening = []
                else:
                    own.opening.append(signal)
            if leads:
                try:
                    return await Sessions(gateway, self.context, until_ms, instant).open(command)
                finally:
                    with own.mutex:
                        waiting, own.opening = own.opening or [], None
                    for other in waiting:
                        other.set()
            left_ms = until_ms - gateway.network.now_ms()
            if left_ms <= 0 or not await signal.wait(left_ms):
                raise StoreUnavailableError(
                    gateway.cluster.label, "did not open the session in time"
                )
        return c.Done()

    async def _run(
        self,
        command: Command,
        until_ms: int,
        instant: Instant | None,
        known: Known | None = None,
    ) -> Outcome:
        step = Step(self.gateway, self.context, command, until_ms, instant)
        outcome = await step.run(known)
        if not step.unsettled:
            return outcome
        try:
            wakes = await settle(self.gateway, self.context, step.unsettled, until_ms, instant)
        except (StoreUnavailableError, OutcomeUnknownError):
            return outcome  # the command is carried out; those who wait see to the rest
        return outcome._replace(wakes=[*outcome.wakes, *wakes])

    def close(self) -> None:
        self._on_close(self)
        self.gateway.transport.close()
