"""The wires that a store has handed out, which it closes with itself."""

from __future__ import annotations

from lockfast.ports import Wire


class WireOwner:
    """The base of stores whose wires have connections of their own."""

    def __init__(self) -> None:
        self._wires: set[Wire] = set()

    def _owned(self, wire: Wire) -> Wire:
        self._wires.add(wire)
        return wire

    def close(self) -> None:
        for wire in list(self._wires):
            wire.close()
