"""The idle hand-over: one process waits, the holder releases; how long until the waiter has it?"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from bench.crew import Crew, acquire, release
from bench.figures import Summary, summary
from bench.rounds import in_turn

__all__ = ["measure_idle_handover"]

# The holder lets go at a random instant over a longer span than anybody's polling
# interval (0.25 s at most): a fixed one would meet every poller at the same phase.
HOLD_S = (0.05, 0.35)


def measure_idle_handover(
    crews: Sequence[Crew], *, rounds: int, handovers_per_round: int
) -> dict[str, Summary]:
    """Milliseconds from just before the holder's release to just after the waiter's acquire."""
    chance = random.Random(1)
    took_ms: dict[str, list[float]] = {crew.name: [] for crew in crews}
    for crew in in_turn(crews, rounds):
        for _ in range(handovers_per_round):
            took_ms[crew.name].append(_hand_over(crew, chance.uniform(*HOLD_S)) / 1e6)
    return {name: summary(values) for name, values in took_ms.items()}


def _hand_over(crew: Crew, hold_s: float) -> int:
    holder, waiter, *_ = crew.members
    holder.carry_out(acquire)
    granted_ns = waiter.start(acquire)
    time.sleep(hold_s)
    releasing_ns = holder.carry_out(release)
    took_ns = granted_ns() - releasing_ns
    waiter.carry_out(release)
    return took_ns
