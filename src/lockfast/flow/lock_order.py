"""Lock-order checker: warns of a possible deadlock before it happens.

An actor that takes B while it holds A shows the order A, B. When the other order is seen
too, two actors could wait for each other one day, so that is worth a warning, once.
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
"""The orders remembered; those not seen for longest are forgotten first."""
_PACKAGE: Final = __name__.partition(".")[0] + "."


class LockOrder:
    """Remembers in which order names were taken, and where in the program."""

    def __init__(self, mutex: AbstractContextManager[Any]) -> None:
        self._mutex = mutex
        self._orders: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._told: set[frozenset[str]] = set()

    def took(self, core: Core, taken: Holding) -> None:
        """Note that an actor has taken one more."""
        if not taken.actor:
            return  # kept for later use: nobody holds it while taking another
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
                    "lock order: %r was taken while %r was held at %s, and %r while %r was "
                    "held at %s; two who do so at once wait for each other for ever",
                    name,
                    other,
                    where,
                    other,
                    name,
                    before,
                )

    def _note(self, first: str, second: str, where: str) -> str | None:
        """Remember an order; where the other one was seen, if that is news."""
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
    """The nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_globals.get("__name__") or "").startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
