"""The idle hand-over: the time from a holder's release to the grant of a single waiter."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from itertools import chain, islice

from bench.crew import Crew, acquire, of_each, release
from bench.figures import Summary, summary

__all__ = ["measure_idle_handover"]

# The hold times are spread evenly over more than the longest polling interval (0.25 s): a fixed one
# would meet every poller in the same phase, and a few random ones would meet one poller early and
# another late. All contestants get the same ones.
HOLD_S = (0.05, 0.35)


def measure_idle_handover(
    crews: Sequence[Crew], *, rounds: int, handovers_per_round: int
) -> dict[str, Summary]:
    """Measure the milliseconds from just before a release to just after the waiter's acquire."""
    spans_s = _spread(rounds * handovers_per_round)
    spans_of = {crew.name: iter(spans_s) for crew in crews}

    def some_handovers(crew: Crew) -> list[float]:
        spans = islice(spans_of[crew.name], handovers_per_round)
        return [_hand_over(crew, hold_s) / 1e6 for hold_s in spans]

    took_ms = of_each(crews, rounds, some_handovers)
    return {name: summary([*chain.from_iterable(values)]) for name, values in took_ms.items()}


def _spread(count: int) -> list[float]:
    """Return evenly spaced hold times, in random order."""
    shortest_s, longest_s = HOLD_S
    step_s = (longest_s - shortest_s) / count
    spans_s = [shortest_s + (i + 0.5) * step_s for i in range(count)]
    random.Random(1).shuffle(spans_s)
    return spans_s


def _hand_over(crew: Crew, hold_s: float) -> int:
    holder, waiter, *_ = crew.members
    holder.carry_out(acquire)
    granted_ns = waiter.start(acquire)
    time.sleep(hold_s)
    releasing_ns = holder.carry_out(release)
    took_ns = granted_ns() - releasing_ns
    waiter.carry_out(release)
    return took_ns
