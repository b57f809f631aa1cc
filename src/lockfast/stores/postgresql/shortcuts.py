"""The common short cases: one call of a SQL function, one round trip, one commit."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core.commands import WAKE_GRANTED, Command, Place, Reply, Wake
from lockfast.core.modes import EXCLUSIVE, LOCK, MODES_OF_KIND
from lockfast.stores.postgresql.connection import Connection, Parameter, Result
from lockfast.stores.postgresql.packing import pack_places
from lockfast.stores.postgresql.schema import in_schema

_MODES: Final = MODES_OF_KIND[LOCK]
GENERAL: Final = "general"
"""The outcome of a function that has done nothing."""


class Call(NamedTuple):
    """A SQL function and its arguments, without the namespace before and the clock after them."""

    function: str
    arguments: tuple[Parameter, ...]


@lru_cache
def _sql(function: str, count: int, schema: str) -> str:
    numbers = ", ".join(f"${i}" for i in range(1, count + 1))
    return in_schema(f"SELECT * FROM lockfast.{function}({numbers})", schema)


def call_for(command: Command, own_channel: str) -> Call | None:
    """Return the function for a command that may be simple enough; the server decides."""
    if type(command) is c.Enter:
        return _enter(command)
    if type(command) is c.Leave:
        return _leave(command, own_channel)
    if type(command) is c.Renew and not command.waiting:
        session, count, checksum, lowest, _ = command
        return Call("renew", (session, count, checksum, lowest))
    return None


def _enter(command: c.Enter) -> Call | None:
    if (
        len(command.places) != 1
        or command.open is not None
        or command.max_hold_ms
        or command.window_ms
        or command.block != 1
        or command.value is not None
    ):
        return None
    place = command.places[0]
    if place.kind != LOCK or place.mode not in _MODES:
        return None
    return Call(
        "enter",
        (
            command.session, command.n, place.kind, place.name, place.mode,
            pack_places(command.places), command.actor, command.queue, command.priority,
            command.head_start_ms, command.lock_delay_ms,
        ),
    )  # fmt: skip


def _leave(command: c.Leave, own_channel: str) -> Call | None:
    if len(command.places) != 1 or command.close_ms:
        return None
    kind, name, *_ = command.places[0]
    heir = pack_places([Place(kind, name, EXCLUSIVE)])
    return Call("leave", (command.session, command.n, kind, name, heir, own_channel))


def run_call(
    connection: Connection, call: Call, until_s: float, now_ms: int | None = None
) -> Result:
    address = connection.address
    arguments = (address.namespace, *call.arguments, now_ms)
    sql = _sql(call.function, len(arguments), address.schema)
    return connection.run(sql, *arguments, until_s=until_s)


def reply_to(command: Command, found: Result, wakes: list[Wake]) -> Reply | None:
    """Return the reply in a function's row; None if the general path must be taken."""
    ((outcome, *rest),) = found
    if outcome == GENERAL:
        return None
    if isinstance(command, c.Enter):
        token, look_ms, ahead = rest
        if outcome == "granted":
            return c.Granted(int(token or 0), 0, command.places[0].mode)
        blockers = tuple(c.Blocker(*values) for values in json.loads(ahead or "[]"))
        if outcome == "busy":
            return c.Busy(blockers)
        return c.Queued(blockers, int(look_ms or 0))
    if isinstance(command, c.Leave):
        inbox, session, n, token = rest
        if session is not None:
            wakes.append(Wake(inbox or "", session, int(n or 0), WAKE_GRANTED, int(token or 0)))
        return c.Done()
    return c.Renewed(rest[0] == "t")
