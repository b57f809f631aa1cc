"""Send commands to the cluster, for callers and keepers alike."""

from __future__ import annotations

from collections.abc import Callable

from lockfast.core import commands as c
from lockfast.core.commands import Command, Reply
from lockfast.errors import StoreError, StoreUnavailableError
from lockfast.stores.derived.endings import ending_of
from lockfast.stores.derived.steps import Instant, Outcome
from lockfast.stores.derived.stored import UnreadableError
from lockfast.stores.etcd import journal, shortcuts
from lockfast.stores.etcd.errors import DuplicateKeyError, SessionMovedError
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.reading import Reader
from lockfast.stores.etcd.sessions import Sessions
from lockfast.stores.etcd.steps import run


class EtcdWire:
    """Executes each command as transactions of the cluster."""

    def __init__(self, gateway: Gateway, on_close: Callable[[EtcdWire], None]) -> None:
        self.gateway = gateway
        self._on_close = on_close

    @property
    def connections(self) -> int:
        """The number of connections made so far; a new one may lead to another member."""
        return getattr(self.gateway.transport, "connections", 0)

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        return (await self.step(command, self.gateway.until_ms(timeout_ms))).reply

    async def step(
        self, command: Command, until_ms: int, instant: Instant | None = None
    ) -> Outcome:
        """Execute a command at a given instant; used for comparison with the lock table."""
        execution = Execution(self.gateway, until_ms, instant)
        label = self.gateway.context.label
        try:
            if isinstance(command, c.Enter):
                return await _enter(execution, command)
            if isinstance(command, c.Leave):
                return await _leave(execution, command)
            return await _other(execution, command)
        except SessionMovedError:
            # The client may have withdrawn this claim at the new home already.
            if isinstance(command, c.Enter) or execution.is_over():
                what = "another server has become the home of the session"
                raise StoreUnavailableError(label, what, "retry") from None
            return await self.step(command, until_ms, instant)
        except UnreadableError as error:
            raise StoreError(label, f"cannot be read: {error}", "run `lockfast doctor`") from None
        except DuplicateKeyError as error:
            raise StoreError(label, f"refused a transaction: {error}") from None

    def close(self) -> None:
        self._on_close(self)
        self.gateway.transport.close()


async def _enter(execution: Execution, command: c.Enter) -> Outcome:
    await execution.resolve_doubt(command.session, command.n)
    if command.open is not None:
        opened = await Sessions(execution).open_once(command.session, command.open)
        if not isinstance(opened, c.Done):
            return Outcome(opened)
        command = command._replace(open=None)
    elif execution.own.get(command.session) is None:
        await Sessions(execution).adopt(command.session)
    own = execution.own.get(command.session)
    try:
        done = await shortcuts.enter(execution, command)
        return done if isinstance(done, Outcome) else await run(execution, command, done)
    finally:
        if own is not None:
            own.free_slot(command.n)


async def _leave(execution: Execution, command: c.Leave) -> Outcome:
    own = execution.own.get(command.session)
    if own is not None:
        own.finish(command.n)
    await execution.resolve_doubt(command.session, command.n)
    done = await shortcuts.leave(execution, command)
    if not isinstance(done, Outcome):
        done = await run(execution, command, done)
    if done.reply == c.Done(found=False):
        execution.own.look_again(command)
    return done


async def _other(execution: Execution, command: Command) -> Outcome:
    """Execute commands about whole sessions, and those that read more than queues."""
    if isinstance(command, c.Renew):
        return await Sessions(execution).renew(command)
    if isinstance(command, c.Close | c.Expel | c.RevokeSession):
        return await Sessions(execution).end([ending_of(command)])
    if isinstance(command, c.Open):
        return Outcome(await Sessions(execution).open(command.session, command))
    if isinstance(command, c.Watch):
        if command.on:
            await journal.begin(execution)
        return Outcome(await Sessions(execution).watch(command))
    if isinstance(command, c.Events):
        return Outcome(await journal.read(execution, command))
    if isinstance(command, c.Claims):
        return Outcome(await Reader(execution).claims(command))
    if isinstance(command, c.Sessions):
        return Outcome(await Reader(execution).sessions(command))
    if isinstance(command, c.Listing):
        return Outcome(await Reader(execution).listing(command))
    return await run(execution, command)
