"""Let the steps of one client change a resource one after the other once they conflict.

Steps that change the same queue at the same time make each other's writes fail: of n steps, one
commits and the others read and decide again, so n callers of one client would send about n² / 2
requests. A step therefore takes its turn, at the latest after its first conflict, and keeps it
until it is done. Only callers take turns: a keeper must not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockfast.ports import Signal
from lockfast.stores.derived.machine import Machine

if TYPE_CHECKING:
    from lockfast.stores.derived.view import Name


@dataclass(eq=False)
class _Waiter:
    signal: Signal
    until_ms: int
    """When its step is over."""
    has_turn: bool = False


@dataclass
class _Line:
    """The steps at one resource: one has its turn, the others wait for theirs."""

    until_ms: int
    """When the step that has its turn is over, even if an interruption kept it from saying so."""
    waiting: list[_Waiter] = field(default_factory=list)


class Turns:
    """The turns at all resources, among the callers of one client."""

    def __init__(self, machine: Machine) -> None:
        self.now_ms = machine.now_ms
        self.mutex = machine.mutex()
        self.lines: dict[Name, _Line] = {}


@dataclass(eq=False)
class Turn:
    """The turn of one step at one resource."""

    turns: Turns
    name: Name
    make_signal: Callable[[], Signal]
    until_ms: int
    goes_first: bool = field(kw_only=True)
    """Pass the waiting steps. A release does, since they wait for the lock."""
    _line: _Line | None = field(default=None, init=False)
    """The line in which this step has its turn."""

    async def take(self) -> bool:
        """Wait for the turn. Return whether other steps had theirs before, so that it had to wait.

        Leaves half of the time for the step; raises TimeoutError if the turn does not come before.
        """
        if self._line is not None:
            return False
        turns = self.turns
        mine = _Waiter(self.make_signal(), self.until_ms)
        line: _Line | None = None
        try:
            with turns.mutex:
                now_ms = turns.now_ms()
                line = turns.lines.get(self.name)
                if line is None or line.until_ms < now_ms:
                    self._line = turns.lines[self.name] = _Line(self.until_ms)
                    return False
                line.waiting.insert(0 if self.goes_first else len(line.waiting), mine)
            await mine.signal.wait(max(1, (self.until_ms - now_ms) // 2))
        finally:
            with turns.mutex:
                if mine.has_turn:
                    self._line = line
                elif line is not None and mine in line.waiting:
                    line.waiting.remove(mine)
        if self._line is None:
            raise TimeoutError
        return True

    def end(self) -> None:
        """Give the turn to the next step. Call it again if it was interrupted."""
        line = self._line
        if line is None:
            return
        with self.turns.mutex:
            if line.waiting:
                following = line.waiting[0]
                following.has_turn, line.until_ms = True, following.until_ms
                following.signal.set()
                del line.waiting[0]
            elif self.turns.lines.get(self.name) is line:
                del self.turns.lines[self.name]
            self._line = None
