"""Worlds of Redis: the shipped scripts and protocol over a modelled server.

Only the server and the sockets are modelled. The rest is the store's own code: how a command
becomes a call of a script, the scripts, how replies are decoded, which wakes are believed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lockfast.core.commands import Command, Reply, Wake
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import WAKE_MISSED, Capabilities, Deliver, Store, WakeListener, Wire
from lockfast.sim.network import PendingReply
from lockfast.sim.redis.data import ReplyError as ModelError
from lockfast.sim.redis.server import RedisServer, Subscription
from lockfast.sim.runtime import MS, Crashed, Host, waiting
from lockfast.sim.services import ObservedStore, OnReply, ServerService
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.errors import is_script_missing
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.resp import ReplyError
from lockfast.stores.redis.scripts import channel_of, script_of
from lockfast.stores.redis.session_wakes import SessionWakes
from lockfast.stores.redis.wake_listener import RedisWakeListener

if TYPE_CHECKING:
    from lockfast.sim.world import World

LABEL: Final = "redis://simulated"
RESET_US_MAX: Final = 40 * MS
"""The maximum time in which a broken connection is noticed, if it is noticed at all."""
RETRY_MS: Final = 50
CONNECT_MS: Final = 1000

Find = Callable[[], RedisServer]


class RedisService(ServerService[RedisServer]):
    """One Redis server, optionally with a replica that lags behind."""

    def __init__(self, world: World) -> None:
        super().__init__(world, RedisServer(world.host("store"), world.network))

    def connect(self, host: Host, on_send: Callable[[Command], None], on_reply: OnReply) -> Store:
        def replied(command: Command, reply: Reply) -> None:
            self.steps.append((self._world.kernel.now, command, reply))
            on_reply(command, reply)

        return ObservedStore(SimRedisStore(host, lambda: self.server), on_send, replied)

    def heal(self) -> None:
        super().heal()
        self.server.out_of_memory = False

    def session_ends_us(self, session: str) -> int | None:
        return None

    def disband(self) -> None:
        self.server.subscriptions.clear()


class SimRedisStore:
    """The store of a client, over the modelled network; `find` returns the current server."""

    capabilities = Capabilities()

    def __init__(self, host: Host, find: Find) -> None:
        self.label = LABEL
        self._host = host
        self._find = find
        self._protocol = ScriptProtocol(Address(LABEL))

    def caller_wire(self) -> Wire:
        return SimRedisWire(self._host, self._find, self._protocol)

    def keeper_wire(self) -> Wire:
        return SimRedisWire(self._host, self._find, self._protocol)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        return SimRedisWakeListener(self._host, self._find, session, deliver)

    def close(self) -> None:
        """There is no connection to close."""


class SimRedisWire:
    """Sends the commands of one client, each on its own connection."""

    def __init__(self, host: Host, find: Find, protocol: ScriptProtocol) -> None:
        self._host = host
        self._find = find
        self._protocol = protocol
        self._server: RedisServer | None = None
        self.connections = 0
        """The number of connections made: a new one may lead to another server."""

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        protocol = self._protocol
        kind: type = type(command)
        until_ms = self._host.now_ms() + timeout_ms
        script = script_of(kind)
        arguments = [encoded(argument) for argument in protocol.arguments(command)]
        keys = (b"%d" % len(protocol.keys), *protocol.keys)
        call = (b"EVALSHA", script.sha, *keys, *arguments)
        found = await self._ask([call], timeout_ms)
        if isinstance(found, ReplyError) and is_script_missing(str(found)):
            left_ms = max(1, until_ms - self._host.now_ms())
            found = await self._ask([(b"SCRIPT", b"LOAD", script.body), call], left_ms)
        return protocol.reply(command, found)

    @waiting
    def _ask(
        self, commands: Sequence[Sequence[bytes]], timeout_ms: int
    ) -> Generator[None, None, Any]:
        host, server = self._host, self._find()
        if host.dead:
            raise Crashed(host.name)
        task, network = host.kernel.current, server.network
        assert task is not None, "only a task can wait"
        if server is not self._server:
            self._server = server
            self.connections += 1
        call = PendingReply(host)
        arrive = partial(self._receive, server, call, commands)
        if not network.carry(host, server.host, arrive) and network.chance(0.5):
            # It never arrived, and the client knows that nothing was done.
            call.fail_soon(StoreUnavailableError(LABEL, "the connection broke"))
        call._waiter = task
        task.wake_after(timeout_ms * MS, host.clock)
        try:
            yield
        finally:
            call._waiter = None
        if call.error is None and call.is_set():
            return call.found
        self._server = None
        raise call.error or OutcomeUnknownError(LABEL, f"no answer within {timeout_ms} ms")

    def _receive(
        self, server: RedisServer, call: PendingReply, commands: Sequence[Sequence[bytes]]
    ) -> None:
        if server.down:
            refused = StoreUnavailableError(LABEL, "connection refused")
            server.network.carry(server.host, self._host, partial(call.fail, refused))
        else:
            server.receive(commands, partial(self._reply, server, call))

    def _reply(self, server: RedisServer, call: PendingReply, found: Any) -> None:
        network = server.network
        broken = network.chance(network.reset)
        arrive = partial(call.arrive, decoded(found))
        if not broken and network.carry(server.host, self._host, arrive):
            return
        if broken or network.chance(0.5):
            call.fail_soon(OutcomeUnknownError(LABEL, "the connection broke"))

    def close(self) -> None:
        """There is no connection to close."""


class SimRedisWakeListener(RedisWakeListener):
    """The shipped checks of messages, over a modelled subscription."""

    def __init__(self, host: Host, find: Find, session: str, deliver: Deliver) -> None:
        self.inbox = f"{host.chance().getrandbits(128):032x}"
        self._address = Address(LABEL)
        self._session = session
        self._wakes = SessionWakes(session, deliver, inbox=self.inbox)
        self._host = host
        self._find = find
        self._channel = channel_of("default", session)
        self._signal = host.signal()
        self._subscription: Subscription | None = None
        self._messages: list[bytes] = []
        self._retry_at_ms = 0
        self._closed = False

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        host = self._host
        until_ms = None if timeout_ms is None else host.now_ms() + timeout_ms
        if self._subscription is None and await self._reaches(until_ms):
            return [Wake(self.inbox, self._session, 0, WAKE_MISSED)]
        wait_ms = None if until_ms is None else max(0, until_ms - host.now_ms())
        if self._subscription is None:
            retry_ms = max(1, self._retry_at_ms - host.now_ms())
            wait_ms = retry_ms if wait_ms is None else min(wait_ms, retry_ms)
        if not self._signal.is_set() or host.dead:
            await self._signal.wait(wait_ms)
        self._signal.clear()
        messages, self._messages = self._messages, []
        return self._wakes.hear_all(
            ["message", self._channel, message.decode(errors="replace")] for message in messages
        )

    async def _reaches(self, until_ms: int | None) -> bool:
        """Subscribe (one round trip). Return False without an answer, or if it is too early."""
        host, server = self._host, self._find()
        now_ms = host.now_ms()
        if now_ms < self._retry_at_ms:
            return False
        wait_ms = CONNECT_MS if until_ms is None else min(CONNECT_MS, max(1, until_ms - now_ms))
        call = PendingReply(host)
        network = server.network
        made = Subscription(host, self._channel.encode(), self._hear, self._break)

        def arrive() -> None:
            if not server.down and not self._closed:
                server.subscriptions[made] = None
                network.carry(server.host, host, partial(call.arrive, True))

        network.carry(host, server.host, arrive)
        if await call.wait(wait_ms) and made in server.subscriptions:
            self._subscription = made
            return True
        server.subscriptions.pop(made, None)
        self._retry_at_ms = host.now_ms() + RETRY_MS
        return False

    def _hear(self, message: bytes) -> None:
        self._messages.append(message)
        self._signal.set()

    def _break(self) -> None:
        self._subscription = None
        self._signal.set()

    def interrupt(self) -> None:
        self._signal.set()

    def close(self) -> None:
        self._closed = True
        if self._subscription is not None:
            self._find().subscriptions.pop(self._subscription, None)


def encoded(argument: str | int) -> bytes:
    return argument.encode() if isinstance(argument, str) else b"%d" % argument


def decoded(found: Any) -> Any:
    """Return a reply as the client's parser would."""
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if isinstance(found, list):
        return [decoded(part) for part in found]
    return ReplyError(str(found)) if isinstance(found, ModelError) else found
