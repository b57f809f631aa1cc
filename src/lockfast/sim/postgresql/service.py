"""Connections to the modelled server, and the store of a simulated client.

The shipped code blocks while a flight is in progress; a simulated task cannot. So a command runs
with the answers that have arrived so far. When it needs another one, the run is abandoned, the
flight is sent in virtual time, and the command runs again from its beginning. The store's steps
depend only on the answers, so each run repeats the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from lockfast.core.commands import Command, Reply, Wake
from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.ports import WAKE_MISSED, Capabilities, Deliver, Store, WakeListener, Wire
from lockfast.sim.network import PendingReply
from lockfast.sim.postgresql.server import Answer, Backend, PostgresServer
from lockfast.sim.runtime import MS, Crashed, Host, SimSignal
from lockfast.sim.services import ObservedStore, OnReply, ServerService
from lockfast.stores.postgresql.address import Address
from lockfast.stores.postgresql.connection import (
    Connection,
    Parameter,
    Result,
    Statement,
    lost_connection,
    refusal,
)
from lockfast.stores.postgresql.wake_listener import PostgresWakeListener
from lockfast.stores.postgresql.wire import Server, hints

if TYPE_CHECKING:
    from lockfast.sim.world import World

LABEL: Final = "postgresql://simulated"
RETRANSMIT_US: Final = (200 * MS, 1000 * MS)
"""After how long a lost message is sent again."""
RETRY_MS: Final = 50
CONNECT_MS: Final = 1000

Find = Callable[[], PostgresServer]
Report = Callable[[str, str], None]
"""Records a broken promise that no history shows."""


class PostgresService(ServerService[PostgresServer]):
    """One server, optionally with a lagging standby."""

    def __init__(self, world: World) -> None:
        super().__init__(world, PostgresServer(world.host("store"), world.network))

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        def replied(command: Command, reply: Reply) -> None:
            self.steps.append((self._world.kernel.now, command, reply))
            on_reply(command, reply)

        store = SimPostgresStore(host, lambda: self.server, self._world.problem)
        return ObservedStore(store, on_send, replied)

    def session_ends_us(self, session: str) -> int | None:
        return None

    def disband(self) -> None:
        self.server.backends.clear()


class SimConnection:
    """A TCP connection to a backend. Messages arrive in order, or the connection breaks."""

    def __init__(self, host: Host, server: PostgresServer, hear: Callable[[str], None]) -> None:
        self._host = host
        self._server = server
        self._hear = hear
        self._backend: Backend | None = None
        self._pending: PendingReply | None = None
        self._arrival_us = {True: 0, False: 0}
        """When the last message arrives, at the server (True) and at the client (False)."""
        self.broken = False
        """The client knows that the connection is closed."""
        self.on_broken: Callable[[], None] = lambda: None

    async def open(self, timeout_ms: int) -> None:
        """Connect to the server. Raises StoreUnavailableError."""
        pending = self._pending = PendingReply(self._host)
        self._send(True, self._accept)
        await pending.wait(timeout_ms)
        self._pending = None
        if pending.found is None:
            self.close()
            raise StoreUnavailableError(LABEL, "did not accept a connection in time")
        if pending.found is False:
            raise StoreUnavailableError(LABEL, "cannot be reached (connection refused)")

    def _accept(self) -> None:
        if not self._server.down:
            self._backend = self._server.connect(self._notify, self._break)
        self._send(False, partial(self._arrive, self._backend is not None))

    async def exchange(self, statements: Sequence[Statement], timeout_ms: int) -> list[Result]:
        """Send a flight and return its results; raises what the shipped connection would raise."""
        if self.broken:
            raise lost_connection(statements, False, "server closed the connection", LABEL)
        pending = self._pending = PendingReply(self._host)
        if not self._send(True, partial(self._receive, statements)):
            network = self._server.network
            if network.chance(0.5):
                pending.fail_soon(lost_connection(statements, True, "reset", LABEL))
        await pending.wait(timeout_ms)
        self._pending = None
        if pending.error is not None:
            raise pending.error
        if pending.found is None:
            raise lost_connection(statements, True, f"no answer in {timeout_ms} ms", LABEL)
        results, error = cast(Answer, pending.found)
        if error is not None:
            answered = statements[: len(results)]
            raise refusal(answered, error.code, error.message, LABEL)
        return results

    def _receive(self, statements: Sequence[Statement]) -> None:
        """Start a flight that has arrived at the server."""
        backend = self._backend
        if backend is None or backend.ended or self._server.down:
            error = lost_connection(statements, True, "connection reset by peer", LABEL)
            self._send(False, partial(self._fail, error))
        elif backend.is_idle:
            backend.begin(statements, self._answer)

    def _answer(self, answer: Answer) -> None:
        network = self._server.network
        is_lost = network.chance(network.reset)
        if is_lost or self._loses(partial(self._arrive, answer)):
            self._break()

    def _notify(self, payload: str) -> None:
        if self._loses(partial(self._hear, payload)):
            self._break()

    def _loses(self, deliver: Callable[[], None]) -> bool:
        """Send a message to the client; return True if its loss breaks the connection."""
        return not self._send(False, deliver) and self._server.network.chance(0.5)

    # ── at the client ────────────────────────────────────────────────────────────────

    def _arrive(self, found: Any) -> None:
        if self._pending is not None:
            self._pending.arrive(found)

    def _fail(self, error: StoreError) -> None:
        self.broken = True
        if self._pending is not None:
            self._pending.fail(error)
        self.on_broken()

    def _break(self) -> None:
        """Close the server's end; the client learns of it unless that message is lost too."""
        error = OutcomeUnknownError(LABEL, "closed the connection", "try again")
        self._send(False, partial(self._fail, error))

    def close(self) -> None:
        """Close the client's end; the server learns of it eventually."""
        self.broken = True
        if not self._send(True, self._hang_up):
            least, most = RETRANSMIT_US
            kernel = self._host.kernel
            again_us = least + kernel.random.randrange(most - least)
            kernel.after(again_us, self.close)

    def _hang_up(self) -> None:
        if self._backend is not None and not self._backend.ended:
            self._backend.hang_up()

    def _send(self, to_server: bool, deliver: Callable[[], None]) -> bool:
        """Send a message after those before it; return False if it is lost."""
        network, server = self._server.network, self._server.host
        source, target = (self._host, server) if to_server else (server, self._host)
        network.messages += 1
        if network.loses(source, target):
            return False
        now_us = network.kernel.now
        at_us = max(now_us + network.transit_us(), self._arrival_us[to_server])
        self._arrival_us[to_server] = at_us
        network.kernel.arrive(at_us - now_us, target, deliver)
        return True


class _Unanswered(BaseException):
    """A command needs the answer to another flight."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        self.statements = statements


class _Answered:
    """A connection that replays the answers received so far."""

    def __init__(self, answers: Sequence[list[Result] | StoreError]) -> None:
        self.address = Address(LABEL, ())
        self._answers = iter(answers)

    def exchange(self, statements: Sequence[Statement], until_s: float) -> list[Result]:
        for answer in self._answers:
            if isinstance(answer, StoreError):
                raise answer
            return answer
        raise _Unanswered(statements)

    def run(self, sql: str, *values: Parameter, until_s: float) -> Result:
        return self.exchange([(sql, values)], until_s)[0]


class SimServer(Server):
    """The shipped `Server`, with a channel drawn from the host's randomness."""

    def __init__(self, host: Host) -> None:
        super().__init__(Address(LABEL, ()))
        self.channel = f"lockfast_{host.chance().getrandbits(64):016x}"


class SimPostgresStore:
    """The store of a client, over the modelled network; `find` returns the current server."""

    capabilities = Capabilities()

    def __init__(self, host: Host, find: Find, report: Report) -> None:
        self.label = LABEL
        self._host = host
        self._find = find
        self._report = report
        self._server = SimServer(host)

    def caller_wire(self) -> Wire:
        return SimPostgresWire(self._host, self._find, self._server, self._report)

    def keeper_wire(self) -> Wire:
        return SimPostgresWire(self._host, self._find, self._server, self._report)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return SimPostgresWakeListener(self._host, self._find, self._server, session, deliver)

    def close(self) -> None:
        """Do nothing: each wire is closed separately."""


class SimPostgresWire:
    """Like the shipped BlockingWire: each command has a connection to itself while it runs."""

    def __init__(self, host: Host, find: Find, server: SimServer, report: Report) -> None:
        self._host = host
        self._find = find
        self._server = server
        self._report = report
        self._idle: list[SimConnection] = []
        self._closed = False
        self.connections = 0
        """How many connections were opened; a new one may reach another server."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_ms = self._host.now_ms() + timeout_ms
        connection = await self._take(until_ms)
        wakes: list[Wake] = []
        try:
            reply = await self._run(connection, command, until_ms, wakes)
        except BaseException:
            connection.close()
            self._server.deliver(hints(wakes))
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)
        self._server.deliver(wakes)
        return reply

    async def _run(
        self, connection: SimConnection, command: Command, until_ms: int, wakes: list[Wake]
    ) -> Reply:
        answers: list[list[Result] | StoreError] = []
        while True:
            wakes.clear()
            answered = cast(Connection, _Answered(answers))
            try:
                return self._server.apply(answered, command, 0.0, wakes)
            except _Unanswered as asked:
                statements = asked.statements
            except (AssertionError, LookupError, ValueError) as error:
                # The rows are inconsistent.
                self._report("consistent", f"{type(command).__name__}: {error!r}")
                raise StoreUnavailableError(LABEL, "its rows contradict each other") from None
            left_ms = max(1, until_ms - self._host.now_ms())
            try:
                answers.append(await connection.exchange(statements, left_ms))
            except StoreError as error:
                answers.append(error)

    async def _take(self, until_ms: int) -> SimConnection:
        host = self._host
        if host.dead:
            raise Crashed(host.name)
        while self._idle:
            connection = self._idle.pop()
            if not connection.broken:
                return connection
            connection.close()
        connection = SimConnection(host, self._find(), lambda payload: None)
        await connection.open(max(1, until_ms - host.now_ms()))
        self.connections += 1
        return connection

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class SimPostgresWakeListener(PostgresWakeListener):
    """The shipped listener's handling of notifications, over a modelled connection."""

    def __init__(
        self, host: Host, find: Find, server: SimServer, session: str, deliver: Deliver
    ) -> None:
        self._host = host
        self._find = find
        self._server = server
        self._session = session
        self._deliver = deliver
        self._secret = f"{host.chance().getrandbits(64):016x}"
        self.inbox = f"{server.channel} {self._secret}"
        self._payloads: list[str] = []
        self._signal: SimSignal = host.signal()
        self._open: SimConnection | None = None
        self._retry_at_ms = 0
        self._closed = False
        server.attach(session, deliver)

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        host = self._host
        until_ms = None if timeout_ms is None else host.now_ms() + timeout_ms
        if self._open is None and await self._reaches(until_ms):
            return [Wake(self.inbox, self._session, 0, WAKE_MISSED)]
        wait_ms = None if until_ms is None else max(0, until_ms - host.now_ms())
        if self._open is None:
            retry_ms = max(1, self._retry_at_ms - host.now_ms())
            wait_ms = retry_ms if wait_ms is None else min(wait_ms, retry_ms)
        if not self._signal.is_set() or host.dead:
            await self._signal.wait(wait_ms)
        self._signal.clear()
        payloads, self._payloads = self._payloads, []
        wakes: list[Wake] = []
        for payload in payloads:
            self._take(payload, wakes)
        return wakes

    async def _reaches(self, until_ms: int | None) -> bool:
        """Connect and listen; return False if that fails or if no retry is due yet."""
        now_ms = self._host.now_ms()
        if now_ms < self._retry_at_ms:
            return False
        wait_ms = CONNECT_MS if until_ms is None else min(CONNECT_MS, max(1, until_ms - now_ms))
        connection = SimConnection(self._host, self._find(), self._hear)
        try:
            await connection.open(wait_ms)
            listen: Statement = (f'LISTEN "{self._server.channel}"', ())
            await connection.exchange([listen], wait_ms)
        except StoreError:
            connection.close()
            self._retry_at_ms = self._host.now_ms() + RETRY_MS
            return False
        except BaseException:
            connection.close()
            raise
        if self._closed or connection.broken:
            connection.close()
            return False
        connection.on_broken = self._lose
        self._open = connection
        return True

    def _hear(self, payload: str) -> None:
        self._payloads.append(payload)
        self._signal.set()

    def _lose(self) -> None:
        self._open = None
        self._signal.set()

    def interrupt(self) -> None:
        self._signal.set()

    def close(self) -> None:
        self._closed = True
        self._server.detach(self._session)
        if self._open is not None:
            self._open.close()
