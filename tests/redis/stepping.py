"""The scripts behind `apply`, with a clock that the test sets."""

from __future__ import annotations

from typing import Any

from lockfast.core import commands as c
from lockfast.core.lines import FAR_MS
from lockfast.sim.network import Network
from lockfast.sim.redis import server
from lockfast.sim.redis.data import ReplyError
from lockfast.sim.redis.service import decoded, encoded
from lockfast.sim.runtime import Host, Kernel
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.codec import decode_wakes, reply_to
from lockfast.stores.redis.protocol import ScriptProtocol
from lockfast.stores.redis.scripts import script_of
from lockfast.stores.redis.wire import BlockingWire
from lockfast.stores.registry import parse_url


class ScriptSteps:
    """Executes one command after the other on its own shard."""

    def __init__(self, url: str, *, watched: bool = True) -> None:
        address = parse(parse_url(url))
        self.namespace = address.namespace
        self.shortcuts = 0
        """Steps that took a shortcut, which replies with a plain number or in lower case."""
        self.hand_overs = 0
        """Shortcuts that granted the lock to another claim."""
        self.lined_up = 0
        """Shortcuts that queued a claim, or would have."""
        self._protocol = ScriptProtocol(address)
        self._wire = BlockingWire(self._protocol)
        self._watched = watched
        self._places: dict[tuple[str, int], tuple[c.Place, ...]] = {}

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        if self._watched:
            # Watch from the beginning, so that the log can be compared too.
            self._step(c.Events(None), now_ms, wall_us)
        if isinstance(command, c.Enter):
            self._places.setdefault(command[:2], command.places)
        elif isinstance(command, c.Leave):
            # As clients do: it enables the scripts' shortcut for releases.
            command = command._replace(places=self._places.get(command[:2], ()))
        return self._step(command, now_ms, wall_us)

    def _step(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        answer = self._answer(command, f"{now_ms} {wall_us}")
        if isinstance(answer, Exception):
            raise self._protocol.error(answer)
        found, wakes = answer
        if isinstance(found, int) or found[0] in "qb":
            self.shortcuts += 1
            self.hand_overs += bool(wakes)
            self.lined_up += isinstance(found, list)
        reply = reply_to(command, found)
        if isinstance(reply, c.Queued) and reply.look_ms == FAR_MS:
            reply = reply._replace(look_ms=FAR_MS - now_ms)
        return reply, decode_wakes(wakes)

    def _answer(self, command: c.Command, clock: str) -> Any:
        return self._wire.exchange(command, 10_000, clock)

    def close(self) -> None:
        self._wire.close()


class ModelSteps(ScriptSteps):
    """The scripts on the simulator's Redis, which answers immediately."""

    def __init__(self, *, watched: bool = True) -> None:
        super().__init__("redis://model", watched=watched)
        kernel = Kernel()
        self._server = server.RedisServer(Host(kernel, "store"), Network(kernel))

    def run_out_of_memory(self) -> None:
        self._server.out_of_memory = True

    def lose_row(self, key: str) -> None:
        """Damage the namespace: a row is missing."""
        rows: Any = self._server.data.keys[self._protocol.keys[0]]
        del rows[key.encode()]

    def set_layout(self, shards: int) -> None:
        """Make the namespace one with this many shards."""
        rows: Any = self._server.data.keys[self._protocol.keys[0]]
        rows[b"m"] = rows[b"m"][:25] + bytes([shards]) + rows[b"m"][26:]

    def stored(self) -> dict[bytes, Any]:
        """Return everything stored, except the log and its expiry."""
        rows, order, due, _ = self._protocol.keys
        keys: dict[bytes, Any] = self._server.data.copy().keys
        fields: Any = keys.get(rows, {})
        counters = fields.pop(b"m", b"")[:26]
        ordered = {key: dict(keys[key].scores) for key in (order, due) if key in keys}
        return {b"m": counters, rows: fields, **ordered}

    def _answer(self, command: c.Command, clock: str) -> Any:
        protocol = self._protocol
        keys = (*protocol.keys, clock.encode())
        arguments = (encoded(argument) for argument in protocol.arguments(command))
        kind: type = type(command)
        body = script_of(kind).body
        call = (b"EVAL", body, b"%d" % len(keys), *keys, *arguments)
        try:
            return decoded(self._server.execute(call))
        except ReplyError as error:
            return error
