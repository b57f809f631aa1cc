"""What a store has not declared is refused here, before anything is sent."""

from __future__ import annotations

from typing import Final

from lockfast.core import commands as c
from lockfast.errors import UnsupportedError
from lockfast.ports import Capabilities, Wire

_EVERYTHING: Final = Capabilities()
_ONLY: Final = ("lock", "exclusive")


def able(wire: Wire, can: Capabilities) -> Wire:
    """The wire itself, or one that refuses what the store cannot do."""
    lacks_nothing = can._replace(death_watch=_EVERYTHING.death_watch) == _EVERYTHING
    return wire if lacks_nothing else _AbleWire(wire, can)


class _AbleWire:
    def __init__(self, wire: Wire, can: Capabilities) -> None:
        self._wire = wire
        self._can = can

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        refuse(self._can, command)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


def refuse(can: Capabilities, command: c.Command) -> None:
    """Raise UnsupportedError if a store that can only do this cannot do that."""
    what = why = ""
    if isinstance(command, c.Enter):
        if command.queue and not can.queue:
            what, why = "waiting for a lock", "this store has no queue to stand in"
        elif command.priority and not can.priority:
            what, why = f"priority={command.priority}", "this store has no common order"
        elif len(command.places) > can.several:
            what = f"{len(command.places)} locks at once"
            why = f"this store grants {can.several} in one step"
        elif not can.modes and any((p.kind, p.mode) != _ONLY for p in command.places):
            what, why = "a shared, tree or semaphore claim", "this store has exclusive locks only"
    elif isinstance(command, c.Convert | c.Resize) and not can.modes:
        what, why = "converting or resizing", "this store has exclusive locks only"
    elif isinstance(command, c.Watch | c.Events) and not can.watch:
        what, why = "watching", "this store keeps no log"
    elif isinstance(command, c.Revoke | c.RevokeSession) and not can.revoke:
        what, why = "revoking", "this store cannot take a lock away"
    if what:
        raise UnsupportedError(what, why, "do without, or use another store")
