"""Does every grant go to the longest waiter?

One process holds, and the others queue behind it, far enough apart that their order is certain.
Then the holder releases and asks again at once, and so does every process that is served: none of
those that come back may overtake a waiter.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.crew import Crew, Hold, acquire, of_each, release, take_turns

__all__ = ["Order", "measure_order"]

# A request reaches its lock within about a millisecond while the others sleep.
APART_S = 0.02


@dataclass(frozen=True)
class Order:
    processes: int
    grants: int
    """Grants made while a process of the line was still waiting."""
    to_longest_waiter: int

    @property
    def share(self) -> float:
        return self.to_longest_waiter / self.grants


def measure_order(crews: Sequence[Crew], *, rounds: int) -> dict[str, Order]:
    results = of_each(crews, rounds, _line_up)
    return {
        name: Order(
            of_rounds[0].processes,
            sum(order.grants for order in of_rounds),
            sum(order.to_longest_waiter for order in of_rounds),
        )
        for name, of_rounds in results.items()
    }


def _line_up(crew: Crew) -> Order:
    holder, *line = crew.members
    holder.carry_out(acquire)
    results = []
    for member in line:
        results.append(member.start(partial(take_turns, grants=2)))
        time.sleep(APART_S)
    released = holder.start(release)
    again = holder.start(partial(take_turns, grants=1))
    released()
    return _judge([result() for result in results], again())


def _judge(line: list[list[Hold]], holder: list[Hold]) -> Order:
    """Go through the grants in order until the whole line is served."""
    first_of = {turns[0]: place for place, turns in enumerate(line)}
    holds = [*holder, *(hold for turns in line for hold in turns)]
    waiting = list(range(len(line)))
    grants = to_longest_waiter = 0
    for hold in sorted(holds, key=lambda hold: hold.granted_ns):
        if not waiting:
            break
        grants += 1
        place = first_of.get(hold)
        if place is not None:
            to_longest_waiter += place == waiting[0]
            waiting.remove(place)
    return Order(len(line) + 1, grants, to_longest_waiter)
