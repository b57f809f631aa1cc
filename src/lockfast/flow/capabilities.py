"""Refuse commands that need a capability the store has not declared, before any I/O."""

from __future__ import annotations

from typing import Final

from lockfast.core import commands as c
from lockfast.core.modes import ELECTION, EXCLUSIVE, LOCK, ONCE
from lockfast.errors import UnsupportedError
from lockfast.ports import Capabilities, Wire

_EVERYTHING: Final = Capabilities()
_PLAIN_KINDS: Final = (LOCK, ELECTION, ONCE)
"""Kinds that a store without modes supports, with exclusive claims only."""


def checked_wire(wire: Wire, capabilities: Capabilities) -> Wire:
    """Return `wire`, wrapped in a capability check if the store lacks any capability."""
    lacks_nothing = capabilities._replace(death_watch=False, contend=False) == _EVERYTHING
    return wire if lacks_nothing else _CheckedWire(wire, capabilities)


class _CheckedWire:
    def __init__(self, wire: Wire, capabilities: Capabilities) -> None:
        self._wire = wire
        self._capabilities = capabilities

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        require_supported(self._capabilities, command)
        return await self._wire.send(command, timeout_ms)

    def close(self) -> None:
        self._wire.close()


def require_supported(capabilities: Capabilities, command: c.Command) -> None:
    """Raise UnsupportedError if `command` needs a capability that is not declared."""
    what = why = ""
    advice = "avoid this feature or use another store"
    if isinstance(command, c.Contend):
        if not capabilities.contend:
            what, why = (
                "contending for a lock",
                "this store has a queue, or does not support waiting",
            )
        command = command.enter
    if isinstance(command, c.Enter):
        if command.queue and not capabilities.queue:
            what, why = "waiting for a lock", "this store has no queue"
        elif command.priority and not capabilities.priority:
            what, why = f"priority={command.priority}", "this store does not order claims"
        elif len(command.places) > capabilities.several:
            what = f"{len(command.places)} locks at once"
            why = f"this store grants at most {capabilities.several} in one step"
        elif command.block > 1 and not capabilities.retain:
            what, why = "retain=True", "this store cannot notify a holder that others wait"
        elif not capabilities.modes and any(
            p.kind not in _PLAIN_KINDS or p.mode != EXCLUSIVE for p in command.places
        ):
            what, why = "a shared, tree or semaphore claim", "this store has only exclusive locks"
    elif isinstance(command, c.Convert | c.Resize) and not capabilities.modes:
        what, why = "converting or resizing", "this store has only exclusive locks"
    elif isinstance(command, c.Watch | c.Events) and not capabilities.watch:
        what, why = "watching", "this store keeps no log of events"
        advice = "poll instead (list(), leader(), members(), `lockfast ls`), or use another store"
    elif isinstance(command, c.Revoke | c.RevokeSession) and not capabilities.revoke:
        what, why = "revoking", "this store cannot take a lock from its holder"
    if what:
        raise UnsupportedError(what, why, advice)
