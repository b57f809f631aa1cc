"""Lock-order checker: warns of a possible deadlock before it happens.

An actor that acquires B while it holds A establishes the order A, B. If the program also
uses the order B, A, two actors may deadlock, so the checker logs one warning.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from lockfast.flow.holding import Holding, Phase
from lockfast.flow.log import logger

if TYPE_CHECKING:
    from lockfast.flow.client import Core

ORDERS_MAX: Final = 10_000
"""How many orders are remembered; the least recently seen is dropped first."""
_PACKAGE: Final = __name__.partition(".")[0] + "."


class LockOrder:
    """Records the order in which names are acquired, and where in the program."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        self._mutex = mutex
        self._orders: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._told: set[frozenset[str]] = set()

    def took(self, core: Core, taken: Holding) -> None:
        """Record that an actor has acquired `taken`, and warn if that reverses an order."""
        if not taken.actor:
            return  # a retained claim has no actor
        held = [
            holding.ask.name
            for session in core.sessions()
            for holding in session.holdings()
            if holding.actor == taken.actor and holding is not taken and holding.phase is Phase.HELD
        ]
        if not held:
            return
        name = taken.ask.name
        where = _place_in_program()
        for other in held:
            before = self._note(other, name, where) if other != name else None
            if before is not None:
                logger.warning(
                    "lock order: %r was acquired while holding %r at %s, and %r while holding "
                    "%r at %s; two threads or tasks that do so concurrently may deadlock",
                    name,
                    other,
                    where,
                    other,
                    name,
                    before,
                )

    def _note(self, first: str, second: str, where: str) -> str | None:
        """Record an order. Return where the reverse order was seen, unless already reported."""
        with self._mutex:
            self._orders[first, second] = where
            self._orders.move_to_end((first, second))
            if len(self._orders) > ORDERS_MAX:
                self._orders.popitem(last=False)
            pair = frozenset((first, second))
            if pair in self._told or len(self._told) >= ORDERS_MAX:
                return None
            before = self._orders.get((second, first))
            if before is not None:
                self._told.add(pair)
            return before


def _place_in_program() -> str:
    """Return file and line of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
