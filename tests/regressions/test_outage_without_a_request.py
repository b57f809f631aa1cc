"""An outage ends when the store has replied to something.

A deadlock search that had nothing to read counted as a success. So clients with waiting claims
logged "is reachable again" every second, while their store was down.
"""

from __future__ import annotations

from lockfast.core.commands import Command
from lockfast.errors import StoreUnavailableError
from tests.flow.worlds import TTL_MS, World


def down(command: Command) -> Exception:
    return StoreUnavailableError("memory://", "connection refused")


def test_a_search_that_sends_nothing_ends_no_outage() -> None:
    world = World()
    world.waiting(look_ms=2 * TTL_MS)  # its actor holds nothing: there can be no deadlock
    assert world.session.deadlock_at_ms is not None
    world.wire.answer = down
    failures: list[int] = []
    outage = world.session.emitter.outage
    for at_ms in range(15_000, 25_000, 100):
        world.listener.at(at_ms, lambda: failures.append(outage.failures))
    world.keep(2 * TTL_MS)
    assert failures == sorted(failures), "it began anew"
    assert failures[-1] > 1
