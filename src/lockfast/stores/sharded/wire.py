"""Send each command to its shard; read from all shards what concerns all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from lockfast.core import commands as c
from lockfast.core.placement import Placement
from lockfast.errors import StoreError, UnsupportedError
from lockfast.ports import Wire
from lockfast.stores.sharded.merging import merged_events, merged_listing, merged_sessions
from lockfast.stores.sharded.positions import split

Reply_T = TypeVar("Reply_T")


class ShardedWire:
    """Commands to all shards, over one wire per shard that is created on first use."""

    def __init__(
        self,
        label: str,
        placement: Placement,
        wire_of: Callable[[int], Wire],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._label = label
        self._on_close = on_close
        self._placement = placement
        self._wire_of = wire_of
        self._wires: dict[int, Wire] = {}

    @property
    def connections(self) -> int:
        """The number of connections made so far, by the wires that count them."""
        return sum(getattr(wire, "connections", 0) for wire in list(self._wires.values()))

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        placement = self._placement
        if placement.shards == 1:
            return await self._wire(0).send(command, timeout_ms)
        if isinstance(command, c.Listing):
            shards = placement.shards_of_prefix(command.prefix)
            listed = await self._read(command, timeout_ms, c.ListingReply, shards)
            return merged_listing(listed, command.limit)
        if isinstance(command, c.Sessions):
            sessions = await self._read(command, timeout_ms, c.SessionsReply)
            return merged_sessions(sessions, command.limit)
        if isinstance(command, c.Events):
            return await self._events(command, timeout_ms)
        if isinstance(command, c.Break):
            return await self._break(command, timeout_ms)
        return await self._wire(self._shard(command)).send(command, timeout_ms)

    def _shard(self, command: c.Command) -> int:
        """Return the shard of a command; raises UnsupportedError if it has none."""
        placement = self._placement
        if isinstance(command, c.Inspect | c.Resize):
            return placement.shard_of_name(command.kind, command.name)
        session = command.enter.session if isinstance(command, c.Contend) else _session(command)
        shard = placement.shard_of_session(session)
        places = command.places if isinstance(command, c.Enter) else ()
        if places and placement.shard_of(places) != shard:
            raise UnsupportedError(
                f"a claim of session {session} on {places[0].name!r}",
                "the lock is on another shard than the session",
                "open a session with an id of that shard",
            )
        return shard

    def _wire(self, shard: int) -> Wire:
        wire = self._wires.get(shard)
        if wire is None:
            # Two threads may each create one; the first to be stored is used.
            wire = self._wires.setdefault(shard, self._wire_of(shard))
        return wire

    async def _read(
        self,
        command: c.Command,
        timeout_ms: int,
        kind: type[Reply_T],
        shards: Sequence[int] | None = None,
    ) -> list[Reply_T]:
        """Send a command to several shards, by default to all; fails if any of them fails."""
        every = range(self._placement.shards) if shards is None else shards
        return [await self._ask(shard, command, timeout_ms, kind) for shard in every]

    async def _ask(
        self, shard: int, command: c.Command, timeout_ms: int, kind: type[Reply_T]
    ) -> Reply_T:
        reply = await self._wire(shard).send(command, timeout_ms)
        if not isinstance(reply, kind):
            raise StoreError(self._label, f"answered {reply!r} to {type(command).__name__}")
        return cast("Reply_T", reply)

    async def _events(self, command: c.Events, timeout_ms: int) -> c.Reply:
        shards = self._placement.shards
        after = None if command.after is None else split(command.after, shards)
        replies = [
            await self._ask(
                shard,
                c.Events(None if after is None else after[shard], command.limit),
                timeout_ms,
                c.EventsReply,
            )
            for shard in range(shards)
        ]
        return merged_events(replies, after, command.limit)

    async def _break(self, command: c.Break, timeout_ms: int) -> c.Reply:
        """Break a deadlock: first read its claims in other shards, then act in one step."""
        shard_of = self._placement.shard_of_session
        shard = shard_of(command.session)
        near = tuple(w for w in command.witnesses if shard_of(w.session) == shard)
        for session in dict.fromkeys(w.session for w in command.witnesses if w not in near):
            reply = await self._ask(shard_of(session), c.Claims(session), timeout_ms, c.ClaimsReply)
            stands = {view.n: _holds(view) for view in reply.claims}
            for witness in command.witnesses:
                if witness.session == session and stands.get(witness.n) is not witness.held:
                    return c.Done(found=False)
        return await self._wire(shard).send(command._replace(witnesses=near), timeout_ms)

    def close(self) -> None:
        for wire in list(self._wires.values()):
            wire.close()
        self._on_close()


def _session(command: Any) -> str:
    """Return the session of a command; every command passed here has one."""
    session: str = command.session
    return session


def _holds(view: c.ClaimView) -> bool | None:
    """Return whether a claim holds, as `Table.break_` reads a witness; None if it is revoked."""
    if view.state == c.REVOKED:
        return None
    return view.state == c.HOLDING and not view.wants
