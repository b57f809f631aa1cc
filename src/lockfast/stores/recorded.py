"""LOCKFAST_HISTORY=file: record a client's commands and replies, for `lockfast check`.

A store is wrapped when it is opened, so without the variable there is no overhead. Every command
and every reply passes here with the instants before and after it, in both APIs and for every store.
Many processes may write to one file: every line is one write to a descriptor opened for appending.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core.placement import Placement
from lockfast.ports import Capabilities, Deliver, Store, WakeListener, Wire, placement_of
from lockfast.runtimes.platform import now_us
from lockfast.stores.history_recorder import HistoryFile, HistoryRecorder


def recorded(store: Store, path: str) -> Store:
    """Return the store, wrapped so that its commands and replies are recorded.

    Raises StoreMisconfiguredError if the file cannot be written.
    """
    try:
        return _RecordedStore(store, HistoryRecorder(HistoryFile(path, store.label)))
    except BaseException:
        store.close()
        raise


class _RecordedWire:
    def __init__(self, wire: Wire, recorder: HistoryRecorder) -> None:
        self._wire = wire
        self._recorder = recorder

    async def send(self, command: c.Command, timeout_ms: int) -> c.Reply:
        self._recorder.sends(command)
        sent_us = now_us()
        try:
            reply = await self._wire.send(command, timeout_ms)
        except Exception:
            self._recorder.failed(command, sent_us)
            raise
        self._recorder.heard(command, reply, sent_us)
        return reply

    def close(self) -> None:
        self._wire.close()

    @property
    def connections(self) -> int:
        """The number of connections made so far, if the wire counts them."""
        return getattr(self._wire, "connections", 0)


class _RecordedStore:
    def __init__(self, store: Store, recorder: HistoryRecorder) -> None:
        self._store = store
        self._recorder = recorder

    @property
    def label(self) -> str:
        return self._store.label

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    @property
    def placement(self) -> Placement | None:
        return placement_of(self._store)

    def caller_wire(self) -> Wire:
        return _RecordedWire(self._store.caller_wire(), self._recorder)

    def keeper_wire(self) -> Wire:
        return _RecordedWire(self._store.keeper_wire(), self._recorder)

    def wake_listener(self, session: str, deliver: Deliver) -> WakeListener:
        def record(wake: c.Wake) -> None:
            if wake.session == session:
                self._recorder.hears(wake)
            deliver(wake)

        return self._store.wake_listener(session, record)

    def close(self) -> None:
        self._store.close()
        self._recorder.close()
