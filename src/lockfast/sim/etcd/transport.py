"""The etcd store's network port, connected to the modelled cluster.

It keeps the promises of the shipped network: a call tries one member after the other until it
reaches one; a call whose reply is late or lost has an unknown outcome; a watch is a stream that
arrives in order until it breaks, which the client may not notice.

HTTP over TCP delivers a request at most once, so requests here may be lost or late but never
duplicated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.sim.etcd.cluster import Cluster, Member, Request, Stream
from lockfast.sim.etcd.gateway import WATCH
from lockfast.sim.etcd.wire import Json
from lockfast.sim.network import PendingReply
from lockfast.sim.runtime import MS, Crashed, Host, SimSignal, waiting

LABEL: Final = "etcd://simulated"
ATTEMPTS: Final = 3
ATTEMPT_MS_MIN: Final = 100
ATTEMPT_MS_MAX: Final = 1500


class _Members:
    """The member that a client talks to; shared by all its connections."""

    def __init__(self, cluster: Cluster, first: int) -> None:
        self.cluster = cluster
        self._current = first % len(cluster.members)
        self.failures = dict.fromkeys(cluster.members, 0)

    @property
    def current(self) -> Member:
        return self.cluster.members[self._current]

    def suspect(self, member: Member) -> None:
        """Count a failure of this member; if it is the current one, switch to the next."""
        self.failures[member] += 1
        if member is self.current:
            self._current = (self._current + 1) % len(self.cluster.members)


class SimTransport:
    """Sends the requests of one client."""

    def __init__(self, host: Host, members: _Members) -> None:
        self._host = host
        self._members = members
        self._network = members.cluster.network

    async def call(self, path: str, body: str, timeout_ms: int, token: str = "") -> Json:
        members, host, decoded = self._members, self._host, json.loads(body)
        until_ms = host.now_ms() + timeout_ms
        attempt_ms = min(max(timeout_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
        headers = (f"Authorization: {token}",) if token else ()
        for _ in members.failures:
            member = members.current
            left_ms = min(until_ms - host.now_ms(), attempt_ms)
            try:
                return await self._ask(member, path, decoded, headers, max(1, left_ms))
            except StoreUnavailableError as error:
                members.suspect(member)
                failure = error
            except OutcomeUnknownError:
                members.suspect(member)
                raise
        raise failure

    @waiting
    def _ask(
        self, member: Member, path: str, body: Json, headers: Sequence[str], timeout_ms: int
    ) -> Generator[None, None, Json]:
        host, network = self._host, self._network
        if host.dead:
            raise Crashed(host.name)
        task = host.kernel.current
        assert task is not None, "only a task can wait"
        call = PendingReply(host)
        request = Request(host, path, body, headers, partial(self._reply, member, call))
        arrive = partial(self._receive, member, call, request)
        if not network.carry(host, member.host, arrive) and network.chance(0.5):
            # The request never arrived and the client knows it: nothing was executed.
            call.fail_soon(StoreUnavailableError(LABEL, "the connection broke"))
        call._waiter = task
        task.wake_after(timeout_ms * MS, host.clock)
        try:
            yield
        finally:
            call._waiter = None
        if call.found is not None:
            reply: Json = call.found
            return reply
        raise call.error or OutcomeUnknownError(LABEL, f"no answer within {timeout_ms} ms")

    def _receive(self, member: Member, call: PendingReply, request: Request) -> None:
        if member.down:
            refused = StoreUnavailableError(LABEL, "connection refused")
            self._network.carry(member.host, self._host, partial(call.fail, refused))
        else:
            member.receive(request)

    def _reply(self, member: Member, call: PendingReply, status: int, body: Json) -> None:
        network = self._network
        broken = member.down or network.chance(network.reset)
        if not broken and network.carry(member.host, self._host, partial(call.arrive, body)):
            return
        if broken or network.chance(0.5):
            call.fail_soon(OutcomeUnknownError(LABEL, "the connection broke"))

    async def follow(
        self,
        create_request: Json,
        take: Callable[[Json], bool],
        timeout_ms: int,
        token: str = "",
    ) -> None:
        watcher = SimWatcher(self._host, self._members)
        until_ms = self._host.now_ms() + timeout_ms
        try:
            await watcher.open([create_request], timeout_ms, token)
            while (left_ms := until_ms - self._host.now_ms()) > 0:
                for message in await watcher.next(left_ms):
                    if take(message):
                        return
        finally:
            watcher.close()
        raise StoreUnavailableError(LABEL, f"nothing to follow came within {timeout_ms} ms")

    def avoid_member(self) -> None:
        self._members.suspect(self._members.current)

    async def pause(self, span_ms: int) -> None:
        await self._host.sleep(span_ms)

    def signal(self) -> SimSignal:
        return self._host.signal()

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


class SimWatcher:
    """Follows one stream of watches at a time, on one member."""

    def __init__(self, host: Host, members: _Members) -> None:
        self._host = host
        self._members = members
        self._signal = host.signal()
        self._stream: Stream | None = None
        self._member = members.current
        self._failures = 0
        self._messages: list[Json] = []
        self._broken = False

    async def open(self, create_requests: Sequence[Json], timeout_ms: int, token: str = "") -> None:
        self.drop()
        members, host = self._members, self._host
        member = self._member = members.current
        self._failures = members.failures[member]
        # Connecting takes a round trip, and shows whether the member is up.
        connected = PendingReply(host)
        network = members.cluster.network
        if network.carry(host, member.host, partial(self._connect, member, connected)):
            await connected.wait(timeout_ms)
        if connected.found is None:
            members.suspect(member)
            raise connected.error or StoreUnavailableError(LABEL, "cannot be reached")
        stream = self._stream = Stream(member, host, self._hear, self._break)
        headers = ["Grpc-Metadata-Hasleader: true"]
        headers += [f"Authorization: {token}"] if token else []
        request = Request(host, WATCH, {}, headers, lambda status, body: None)
        bodies = [{"create_request": body} for body in create_requests]
        begin = partial(self._begin, member, request, stream, bodies)
        if not network.carry(host, member.host, begin) and network.chance(0.5):
            stream.break_off(told=True)

    def _connect(self, member: Member, connected: PendingReply) -> None:
        network = self._members.cluster.network
        if member.down:
            refused = StoreUnavailableError(LABEL, "connection refused")
            network.carry(member.host, self._host, partial(connected.fail, refused))
        else:
            network.carry(member.host, self._host, partial(connected.arrive, {}))

    def _begin(
        self, member: Member, request: Request, stream: Stream, bodies: Sequence[Json]
    ) -> None:
        if stream is not self._stream:
            return
        if member.down:
            stream.break_off(told=True)
        else:
            member.open_stream(request, stream, bodies)

    def _hear(self, message: Json) -> None:
        self._messages.append(message)
        self._signal.set()

    def _break(self) -> None:
        self._broken = True
        self._signal.set()

    async def next(self, timeout_ms: int | None) -> Sequence[Json]:
        members = self._members
        if self._stream is not None and members.failures[self._member] > self._failures:
            self.drop()
            raise StoreUnavailableError(LABEL, "a member stopped answering")
        if not self._signal.is_set() or self._host.dead:
            await self._signal.wait(timeout_ms)
        self._signal.clear()
        messages, self._messages = self._messages, []
        if self._broken and self._stream is not None:
            members.suspect(self._member)
            self.drop()
            if not messages:
                raise StoreUnavailableError(LABEL, "broke a watch")
        return messages

    def is_open(self) -> bool:
        return self._stream is not None

    def interrupt(self) -> None:
        self._signal.set()

    def drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._messages.clear()
        self._broken = False

    def close(self) -> None:
        self.drop()


class SimEtcdNetwork:
    """Everything outside one client's store: the cluster, the host's clocks and randomness."""

    def __init__(self, host: Host, cluster: Cluster) -> None:
        self._host = host
        self._members = _Members(cluster, host.chance().randrange(len(cluster.members)))

    def caller_transport(self) -> SimTransport:
        return SimTransport(self._host, self._members)

    def keeper_transport(self) -> SimTransport:
        return SimTransport(self._host, self._members)

    def watcher(self) -> SimWatcher:
        return SimWatcher(self._host, self._members)

    def now_ms(self) -> int:
        return self._host.now_ms()

    def wall_us(self) -> int:
        return self._host.clock.wall_us()

    def random_bits(self, bits: int) -> int:
        return self._host.chance().getrandbits(bits)

    def mutex(self) -> AbstractContextManager[Any]:
        return self._host.mutex()
