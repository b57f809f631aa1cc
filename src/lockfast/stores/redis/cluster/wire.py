"""Commands to one shard: send them to its primary, and follow redirections.

A redirection is an error reply of a node that did not execute the command, so resending it
elsewhere is always safe. All other failures are left to the caller, as with a single server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, NamedTuple

from lockfast.core.commands import Command, Reply
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.redis.address import Server, servers_in
from lockfast.stores.redis.cluster.topology import Channel, Cluster, Links, Shard
from lockfast.stores.redis.codec import BYTES_MAX
from lockfast.stores.redis.connection import packed_probe
from lockfast.stores.redis.errors import is_demoted, is_script_missing
from lockfast.stores.redis.resp import pack
from lockfast.stores.redis.scripts import agreement
from lockfast.stores.stream import FRAME_BYTES_MAX

ATTEMPT_S: Final = 2.0
"""How long to wait for a primary before asking the other nodes whether it was replaced."""
ATTEMPTS_MAX: Final = 3
PAUSE_FIRST_S: Final = 0.005
PAUSE_MAX_S: Final = 0.1
HOPS_MAX: Final = 3
"""Follow this many redirections without a pause; after that the nodes disagree."""
LEAST_S: Final = 0.05
"""Start no attempt with less time than this."""
_ASKING: Final = pack("ASKING")


class Redirection(NamedTuple):
    """Where to send a command."""

    server: Server
    asking: bool = False
    """The server is importing the slot: send ASKING before the command."""

    @property
    def prefix(self) -> list[bytes]:
        """The commands to send before the command itself."""
        return [_ASKING] if self.asking else []


def redirection_in(message: str, asked: Server) -> Redirection | None:
    """Return the redirection in an error reply; None for any other error."""
    code, *words = message.split(" ")
    if code in ("MOVED", "ASK") and len(words) == 2:
        host, _, port = words[1].rpartition(":")
        if ":" in host:
            host = f"[{host}]"
        # A node that does not know its own name omits the host.
        found = servers_in(f"{host or asked.host}:{port}", 0)
        if found is not None and found[0].port:
            return Redirection(found[0], code == "ASK")
    return None


def is_no_primary(message: str) -> bool:
    """Return whether a node says that it takes no writes or that the cluster is down."""
    return is_demoted(message) or message.startswith("CLUSTERDOWN")


Use = Callable[[Channel, Redirection, float], Awaitable[Any]]
"""Send something on a channel, until an instant; return the last reply."""


class ShardWire:
    """Commands to one shard, on connections that all shards of a client share."""

    def __init__(self, cluster: Cluster, links: Links, shard: int) -> None:
        self._cluster = cluster
        self._links = links
        self._shard = cluster.shards[shard]

    @property
    def connections(self) -> int:
        return self._links.connections

    async def send(self, command: Command, timeout_ms: int) -> Reply:
        until_s = monotonic() + timeout_ms / 1000
        if self._shard.namespace not in self._cluster.agreed:
            await self._agree(until_s)

        async def carry_out(channel: Channel, to: Redirection, until_s: float) -> Any:
            return await self._carry_out(command, channel, to, until_s)

        reads_much = BYTES_MAX[type(command)] > FRAME_BYTES_MAX
        attempt_s = timeout_ms / 1000 if reads_much else ATTEMPT_S
        reply: Reply = await self._on_primary(self._shard, carry_out, until_s, attempt_s)
        return reply

    def close(self) -> None:
        """Do nothing: the connections belong to the store."""

    # ── what is sent to a node ───────────────────────────────────────────────────────

    async def _agree(self, until_s: float) -> None:
        """Check the layout of the namespace. Raises StoreMisconfiguredError if it differs.

        A shard that was used before records it, and its keys belong to no other layout. Only the
        first use of a shard needs the namespace's own record, which is on one node.
        """
        if not await self._layout(self._shard, "look", until_s):
            await self._layout(self._cluster.root, "record", until_s)
        self._cluster.agreed.add(self._shard.namespace)

    async def _layout(self, shard: Shard, how: str, until_s: float) -> bool:
        """Return whether a layout is recorded. Raises StoreMisconfiguredError if it differs."""
        script, keys = agreement(self._cluster.address.layout), shard.protocol.keys
        packed = pack("EVAL", script.body, len(keys), *keys, how)

        async def ask(channel: Channel, to: Redirection, until_s: float) -> Any:
            return (await channel.exchange([*to.prefix, packed], until_s))[-1]

        found = await self._on_primary(shard, ask, until_s)
        return bool(found == 1)

    async def _carry_out(
        self, command: Command, channel: Channel, to: Redirection, until_s: float
    ) -> Any:
        """Run the command's script. Return the reply, or the node's error reply."""
        shard, protocol = self._shard, self._shard.protocol
        if (shard.namespace, to.server) not in self._cluster.probed:
            probed = await channel.exchange([*to.prefix, packed_probe(shard.namespace)], until_s)
            if isinstance(probed[-1], Exception):
                return probed[-1]
            self._cluster.probed.add((shard.namespace, to.server))
        packed = [*to.prefix, protocol.packed(command)]
        bytes_max = BYTES_MAX[type(command)]
        found = (await channel.exchange(packed, until_s, bytes_max))[-1]
        if isinstance(found, Exception) and is_script_missing(str(found)):
            # Certainly not executed. Load and call together: the script may be flushed again.
            loading = [protocol.loading(command), *packed]
            found = (await channel.exchange(loading, until_s, bytes_max))[-1]
        if isinstance(found, Exception):
            return found
        reply = protocol.reply(command, found)
        confirmation = protocol.confirmation
        if confirmation is None or not confirmation.needed(command, reply):
            return reply
        waiting = [confirmation.packed(until_s - monotonic())]
        return confirmation.judged(command, reply, (await channel.exchange(waiting, until_s))[-1])

    # ── where it is sent ─────────────────────────────────────────────────────────────

    async def _on_primary(
        self, shard: Shard, use: Use, until_s: float, attempt_s: float = ATTEMPT_S
    ) -> Any:
        """Return the result of `use` on the primary of a shard, even if one was just promoted.

        A primary that does not answer within `attempt_s` may have been replaced: then resend to the
        new one, since the store recognizes commands that it has already executed.
        """
        before = self._cluster.known_primary(shard)
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._redirected(shard, use, min(until_s, monotonic() + attempt_s))
            except (StoreUnavailableError, OutcomeUnknownError):
                after = await self._primary_after_failure(shard, until_s)
                if after in (before, None):
                    raise
                before = after
        return await self._redirected(shard, use, until_s)

    async def _primary_after_failure(self, shard: Shard, until_s: float) -> Server | None:
        try:
            return await self._cluster.primary(shard, self._links, until_s)
        except StoreUnavailableError:
            return None

    async def _redirected(self, shard: Shard, use: Use, until_s: float) -> Any:
        """Return the result of `use` on the primary of a shard, following redirections."""
        cluster, links = self._cluster, self._links
        to: Redirection | None = None
        pause_s, hops = PAUSE_FIRST_S, 0
        while True:
            to = to or Redirection(await cluster.primary(shard, links, until_s))
            found = await self._used(to, use, until_s)
            if not isinstance(found, Exception):
                return found
            is_moving = str(found).startswith("TRYAGAIN")
            to = redirection_in(str(found), to.server)
            if to is None and not is_moving:
                raise shard.protocol.error(found)
            if to is not None and not to.asking:
                cluster.moved(shard, to.server)
            hops += 1
            if to is None or hops > HOPS_MAX:
                if monotonic() + pause_s + LEAST_S >= until_s:
                    what = f"the slot of the lock is being moved ({found})"
                    raise StoreUnavailableError(cluster.label, what, "retry")
                await links.pause(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _used(self, to: Redirection, use: Use, until_s: float) -> Any:
        """Return the result of `use` on a server. After a failure, mark the server as doubtful."""
        try:
            channel = await self._links.take(to.server, until_s)
        except StoreUnavailableError:
            self._cluster.failed(to.server)
            raise
        try:
            found = await use(channel, to, until_s)
        except BaseException as error:
            channel.abandon(error)
            if isinstance(error, StoreUnavailableError | OutcomeUnknownError):
                self._cluster.failed(to.server)
            raise
        if isinstance(found, Exception) and is_no_primary(str(found)):
            self._cluster.failed(to.server)
            channel.abandon()
        else:
            channel.put_back()
        return found
