"""What a client knows about a cluster: its nodes, and the primary of each shard.

Wires on several threads share it. Each field is replaced as a whole or changed by one operation, so
no mutex is needed; a thread that reads an old value is redirected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, Final, Protocol

from lockfast.core.placement import Placement
from lockfast.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.stores.redis.address import Address, Server
from lockfast.stores.redis.cluster.slots import SLOTS, shard_namespaces, slot_of, tag_of
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.resp import pack
from lockfast.stores.stream import FRAME_BYTES_MAX

PATIENCE_S: Final = 0.5
"""How long to wait for one node before asking another."""
NODES_MAX: Final = 2000


class Channel(Protocol):
    """A connection to one node, for one request at a time."""

    async def exchange(
        self, commands: Sequence[bytes], until_s: float, bytes_max: int = FRAME_BYTES_MAX
    ) -> list[Any]:
        """Send commands together; return the replies, which may be ReplyErrors."""
        ...

    def put_back(self) -> None:
        """Keep the connection for the next request."""
        ...

    def abandon(self, error: BaseException | None = None) -> None:
        """Do not use the connection again, unless it certainly survived `error`."""
        ...


class Links(Protocol):
    """Connections to the nodes of a cluster, in blocking or asyncio form."""

    @property
    def connections(self) -> int:
        """The number of connections made so far."""
        ...

    async def take(self, server: Server, until_s: float) -> Channel: ...
    async def pause(self, seconds: float) -> None: ...
    def close(self) -> None: ...


class Shard:
    """One shard: its scripts' keys, and their slot."""

    def __init__(self, address: Address) -> None:
        self.namespace = address.namespace
        self.protocol = ScriptProtocol(address)
        self.slot = slot_of(tag_of(address.namespace))


class Cluster:
    """One namespace in one cluster."""

    def __init__(self, address: Address, nodes: Sequence[Server], placement: Placement) -> None:
        self.address = address
        self.label = address.label
        self.placement = placement
        names = shard_namespaces(address.namespace, placement.shards)
        self.shards = [Shard(address._replace(namespace=name)) for name in names]
        self.root = Shard(address)
        """The namespace itself, which records the layout."""
        self.agreed = {self.shards[0].namespace} if placement.shards == 1 else set()
        """The shards whose layout is known to be that of the namespace."""
        self.probed: set[tuple[str, Server]] = set()
        """The shards and nodes on which all permissions were tried."""
        self._seeds = tuple(nodes)
        self._nodes: tuple[Server, ...] = ()
        self._primaries: dict[int, Server] = {}
        """The primary of each slot that contains a shard."""
        self._doubtful: Server | None = None
        self._is_stale = True

    def address_of(self, server: Server) -> Address:
        """Return the address of a node, labelled for errors."""
        label = f"node {server.host}:{server.port} of {self.label}"
        return self.address._replace(label=label, host=server.host, port=server.port)

    def nodes(self) -> list[Server]:
        """Return the nodes to ask, the one that failed last at the end."""
        known = dict.fromkeys((*self._nodes, *self._seeds))
        return sorted(known, key=lambda server: server == self._doubtful)

    def primaries(self) -> dict[Server, list[int]]:
        """Return the shards of each primary."""
        found: dict[Server, list[int]] = {}
        for number, shard in enumerate(self.shards):
            if shard.slot in self._primaries:
                found.setdefault(self._primaries[shard.slot], []).append(number)
        return found

    def known_primary(self, shard: Shard) -> Server | None:
        """Return the last known primary of a shard."""
        return self._primaries.get(shard.slot)

    async def primary(self, shard: Shard, links: Links, until_s: float) -> Server:
        """Return the primary of a shard; raises StoreUnavailableError if none is known."""
        if self._is_stale:
            await self.refresh(links, until_s)
        found = self._primaries.get(shard.slot)
        if found is None:
            self._is_stale = True
            raise StoreUnavailableError(
                self.label, f"no node serves slot {shard.slot}", "check CLUSTER INFO"
            )
        return found

    def moved(self, shard: Shard, server: Server) -> None:
        """Record that a shard has another primary."""
        self._primaries[shard.slot] = server

    def failed(self, server: Server) -> None:
        """Record that a node did not answer or is no primary: ask others before the next use."""
        self._doubtful = server
        self._is_stale = True

    async def refresh(self, links: Links, until_s: float) -> None:
        """Ask the nodes which of them is the primary of each slot."""
        failure: StoreError | None = None
        for server in self.nodes():
            try:
                reply = await _ask(links, server, min(until_s, monotonic() + PATIENCE_S))
                if isinstance(reply, Exception):
                    raise translate(str(reply), self.address_of(server).label)
                self._learn(reply, server)
                return
            except StoreMisconfiguredError:
                raise
            except StoreError as error:
                failure = error
        why = f" ({failure.what})" if failure is not None else ""
        raise StoreUnavailableError(
            self.label, f"no node names the primaries{why}", "check the nodes"
        ) from failure

    def _learn(self, reply: Any, asked: Server) -> None:
        """Record the reply to CLUSTER SLOTS."""
        slots = {shard.slot for shard in (self.root, *self.shards)}
        primaries: dict[int, Server] = {}
        nodes: dict[Server, None] = {}
        try:
            for first, last, primary, *replicas in reply:
                server = _server(primary, asked)
                nodes.update(dict.fromkeys([server, *(_server(one, asked) for one in replicas)]))
                if not 0 <= first <= last < SLOTS or len(nodes) > NODES_MAX:
                    raise ValueError
                primaries |= {slot: server for slot in slots if first <= slot <= last}
        except (TypeError, ValueError, IndexError):
            raise StoreUnavailableError(
                self.address_of(asked).label, "gave an answer that names no primaries"
            ) from None
        if not primaries:
            raise StoreUnavailableError(
                self.address_of(asked).label, "knows no primaries", "check CLUSTER INFO"
            )
        self._primaries, self._nodes = primaries, tuple(nodes)
        self._is_stale = False


async def _ask(links: Links, server: Server, until_s: float) -> Any:
    channel = await links.take(server, until_s)
    try:
        (reply,) = await channel.exchange([pack("CLUSTER", "SLOTS")], until_s)
    except BaseException as error:
        channel.abandon(error)
        raise
    channel.put_back()
    return reply


def _server(found: Iterable[Any], asked: Server) -> Server:
    """Return the server in a node's entry; an unknown host is that of the node that was asked."""
    host, port, *_ = found
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(host, str | None):
        raise ValueError
    return Server(host if host and host != "?" else asked.host, port)
