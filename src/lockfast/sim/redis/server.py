"""A Redis server on a host: commands one after another, scripts, channels, and faults."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

from lockfast.sim.network import Network
from lockfast.sim.redis.data import STORES, WRITES, Data, Reply, ReplyError, Status
from lockfast.sim.redis.lua import interpreter
from lockfast.sim.runtime import Host

Hear = Callable[[bytes], None]
"""Accepts a published message."""


class Subscription:
    """A client's subscription to a channel, on its own connection."""

    __slots__ = ("broken", "channel", "hear", "host", "last_us")

    def __init__(self, host: Host, channel: bytes, hear: Hear, broken: Callable[[], None]) -> None:
        self.host = host
        self.channel = channel
        self.hear = hear
        self.broken = broken
        self.last_us = 0
        """When the last message arrives, so that messages stay in order."""


class RedisServer:
    """One server. It does not answer while it is down."""

    def __init__(self, host: Host, network: Network, data: Data | None = None) -> None:
        self.host = host
        self.network = network
        self.data = data if data is not None else Data()
        self.down = False
        self.slow_us = 0
        self.out_of_memory = False
        self.subscriptions: dict[Subscription, None] = {}
        self._synced = Data()
        """The state of the replica or of the disk."""
        self._scripts: dict[bytes, bytes] = {}
        self._free_us = 0

    # ── what happens to it ───────────────────────────────────────────────────────────

    def crash(self) -> None:
        """Break all connections and forget the loaded scripts."""
        self.down = True
        self._scripts.clear()
        for subscription in list(self.subscriptions):
            self.drop(subscription, told=self.network.chance(0.8))

    def start(self) -> None:
        self.down = False

    def sync(self) -> None:
        self._synced = self.data.copy()

    def forget_unsynced(self) -> None:
        self.data = self._synced.copy()

    def forget_all(self) -> None:
        self.data, self._synced = Data(), Data()

    def promote(self, host: Host) -> RedisServer:
        """Return a server on another host that continues from what it has replicated."""
        self.crash()
        heir = RedisServer(host, self.network, self._synced.copy())
        heir._synced = self._synced.copy()
        return heir

    # ── commands ─────────────────────────────────────────────────────────────────────

    def receive(self, commands: Sequence[Sequence[bytes]], answer: Callable[[Reply], None]) -> None:
        """Execute commands that arrived together; the reply is that of the last one."""
        if self.slow_us:
            kernel = self.network.kernel
            self._free_us = max(self._free_us, kernel.now) + self.slow_us
            kernel.at(self._free_us, partial(self._serve, commands, answer))
        else:
            self._serve(commands, answer)

    def _serve(self, commands: Sequence[Sequence[bytes]], answer: Callable[[Reply], None]) -> None:
        if self.down:
            return
        reply: Reply = None
        for command in commands:
            try:
                reply = self.execute(command)
            except ReplyError as error:
                reply = error
        answer(reply)

    def execute(self, command: Sequence[bytes]) -> Reply:
        """Execute one command. Raises ReplyError."""
        name = command[0].upper()
        if name == b"EVALSHA":
            body = self._scripts.get(command[1].lower())
            if body is None:
                raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
            return self._evaluate(body, command)
        if name == b"EVAL":
            return self._evaluate(command[1], command)
        if name == b"SCRIPT" and command[1].upper() == b"LOAD":
            sha = hashlib.sha1(command[2], usedforsecurity=False).hexdigest().encode()
            self._scripts[sha] = command[2]
            return sha
        return self._plain(command)

    def _plain(self, command: Sequence[bytes]) -> Reply:
        name = command[0].upper()
        if name == b"TIME":
            seconds, microseconds = divmod(self.host.clock.wall_us(), 1_000_000)
            return [b"%d" % seconds, b"%d" % microseconds]
        if name == b"PUBLISH":
            return self._publish(command[1], command[2])
        if name == b"PING":
            return Status(b"PONG")
        return self.data.run(command)

    def _evaluate(self, body: bytes, command: Sequence[bytes]) -> Reply:
        count = int(command[2])
        keys, arguments = command[3 : 3 + count], command[3 + count :]
        call: Callable[[Sequence[bytes]], Reply] = self._plain
        if self.out_of_memory:
            call = self._sparing()
        return interpreter().run(body, keys, arguments, call)

    def _sparing(self) -> Callable[[Sequence[bytes]], Reply]:
        """Behave like a server out of memory: store nothing until a script has written."""
        has_written = False

        def call(command: Sequence[bytes]) -> Reply:
            nonlocal has_written
            name = command[0].upper()
            if name in STORES and not has_written:
                raise ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
            has_written |= name in WRITES
            return self._plain(command)

        return call

    # ── channels ─────────────────────────────────────────────────────────────────────

    def _publish(self, channel: bytes, message: bytes) -> int:
        heard = [s for s in self.subscriptions if s.channel == channel]
        network, kernel = self.network, self.network.kernel
        for subscription in heard:
            if network.loses(self.host, subscription.host):
                # TCP retransmits a lost segment until the connection counts as broken.
                self.drop(subscription, told=network.chance(0.5))
                continue
            at = max(subscription.last_us, kernel.now + network.transit_us())
            subscription.last_us = at
            kernel.arrive(at - kernel.now, subscription.host, partial(subscription.hear, message))
        return len(heard)

    def drop(self, subscription: Subscription, *, told: bool) -> None:
        """End a subscription; its client notices, or receives nothing more."""
        self.subscriptions.pop(subscription, None)
        if told:
            kernel = self.network.kernel
            late_us = max(1, subscription.last_us - kernel.now)
            kernel.arrive(late_us, subscription.host, subscription.broken)
