"""The entries of the log of events: where they are, what they contain, and how long they are kept.

A log is a node with sequential nodes below it, one for each write that had events. The server
numbers them without a gap, in the order of the writes. An event's position is the number of the
log, that of the entry and the event's place in it, packed into 53 bits. Whoever adds an entry with
a round number deletes old ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from lockfast.core.commands import Event
from lockfast.errors import StoreError
from lockfast.stores.derived.stored import RELATIVE, UnreadableError, decode
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests
from lockfast.stores.zookeeper.layout import Base
from lockfast.stores.zookeeper.transport import Children, Delete, LinkLostError, Stat

PREFIX: Final = "e"
LOG_BITS, ENTRY_BITS, EVENT_BITS = 14, 31, 8
EVENTS_MAX: Final = 1 << EVENT_BITS
"""Events per entry."""
KEPT: Final = 1000
"""Entries that are kept."""
TRIMMED_EVERY: Final = 256


def position(log: int, entry: int, event: int) -> int:
    """Return the position of an event. Entries count from 0; -1 is before all of them."""
    number = log % (1 << LOG_BITS)
    return ((number << ENTRY_BITS | entry + 1) << EVENT_BITS) | event


def entry_at(found: int) -> int:
    """Return the entry at a position."""
    return (found >> EVENT_BITS) % (1 << ENTRY_BITS) - 1


def number_of(node: str) -> int:
    """Return the number of an entry's node, or -1."""
    number = node.removeprefix(PREFIX)
    return int(number) if number.isdigit() else -1


def packed(events: Sequence[Event], base: Base) -> Iterator[bytes]:
    """Encode the events of one write as the contents of entries."""
    for at in range(0, len(events), EVENTS_MAX):
        part = [_packed(event) for event in events[at : at + EVENTS_MAX]]
        yield k.data_of([base.of_tokens, part])


def _packed(event: Event) -> list[Any]:
    values: list[Any] = list(event[1:])
    if event.token >= RELATIVE:
        values[8] = [event.token - RELATIVE]
    return values


def events_from(label: str, data: bytes, stat: Stat, log: int, entry: int) -> list[Event]:
    """Decode an entry; `stat` is that of its node."""
    try:
        base_values, values = decode(data)
        base = k.base_from(label, base_values)
        return [
            _event_from(one, base, stat, position(log, entry, index))
            for index, one in enumerate(values)
        ]
    except (TypeError, ValueError, LookupError) as error:
        raise UnreadableError(f"an entry of the log is not readable ({error})") from None


def _event_from(values: Any, base: Base, stat: Stat, at: int) -> Event:
    wall_ms, what, kind, name, mode, session, n, owner, token, detail = values
    number = base.token(stat.mzxid, int(token[0])) if isinstance(token, list) else int(token)
    return Event(
        at, int(wall_ms), str(what), str(kind), str(name), str(mode), str(session), int(n),
        str(owner), number, str(detail),
    )  # fmt: skip


async def trim(requests: Requests, log: int) -> None:
    """Delete the entries of a log that are older than the last KEPT, if possible.

    The step that calls this was executed, so errors do not concern its caller.
    """
    with suppress(StoreError, LinkLostError):
        await remove(requests, log, kept=KEPT)


async def remove(requests: Requests, log: int, *, kept: int) -> None:
    """Delete all entries of a log but the last `kept`; with 0, also the log."""
    path = requests.context.paths.log(log)
    (found,) = await requests.call(Children(path))
    nodes = sorted(found.children)
    deletes = [Delete(f"{path}/{node}") for node in nodes[: max(0, len(nodes) - kept)]]
    if not kept:
        deletes.append(Delete(path))
    if deletes:
        await requests.call(*deletes)
