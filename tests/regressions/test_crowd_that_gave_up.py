"""A thousand cancelled claims must not cost the session that made them.

The keeper sent every pending release before anything else. While it sent a thousand of them, it
sent no keep-alive, so every lease of the client was lost, and heard no wake, so the lock was held
by claims that nobody waited for and by callers that did not know it.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise

import pytest

from lockfast.core.commands import (
    WAKE_GRANTED,
    Command,
    Done,
    Enter,
    Leave,
    Look,
    Open,
    Place,
    Queued,
    Renew,
    Reply,
    Wake,
)
from lockfast.flow.holding import Phase
from lockfast.flow.keeper import OUTBOX_MS
from lockfast.stores.postgresql.opening import open_store
from lockfast.stores.postgresql.wire import BlockingWire
from lockfast.stores.registry import parse_url
from tests.flow.worlds import TTL_MS, World

REQUEST_MS = 50
CROWD = 1000


def slow_world() -> World:
    """Return a world in which each request takes some time."""
    world = World()
    world.wire.answer = lambda command: _take_time(world)
    return world


def _take_time(world: World) -> Reply | None:
    world.clock.at_ms += REQUEST_MS
    return None


def test_releases_do_not_delay_keep_alives() -> None:
    world = slow_world()
    held = world.held("b")
    for crowd in [world.waiting() for _ in range(CROWD)]:
        world.session.release_later(crowd)
    began_ms = world.clock.at_ms
    seen: list[Phase] = []
    world.listener.at(began_ms + CROWD * REQUEST_MS, lambda: seen.append(held.phase))
    world.keep(began_ms + CROWD * REQUEST_MS + TTL_MS)
    assert seen == [Phase.HELD]
    renewals = [began_ms, *world.wire.times(Renew)]
    gaps = [after - before for before, after in pairwise(renewals)]
    assert max(gaps) <= TTL_MS / 3 + OUTBOX_MS + 2 * REQUEST_MS


def test_wakes_do_not_delay_keep_alives() -> None:
    """A writer that leaves wakes a thousand readers of one client."""
    world = slow_world()
    held = world.held("b")
    crowd = [world.waiting(look_ms=60_000) for _ in range(CROWD)]
    world.session.deadlock_at_ms = None
    woken = [Wake("", world.session.id, claim.n, WAKE_GRANTED, 0) for claim in crowd]
    world.session._inbox += woken
    began_ms = world.clock.at_ms
    seen: list[Phase] = []
    world.listener.at(began_ms + CROWD * REQUEST_MS, lambda: seen.append(held.phase))
    world.keep(began_ms + CROWD * REQUEST_MS + TTL_MS)
    assert len(world.wire.times(Look)) == CROWD
    assert seen == [Phase.HELD]


def test_a_cancelled_claim_that_was_granted_is_released_first() -> None:
    """It holds the lock, and the claims behind it wait for that."""
    world = slow_world()
    crowd = [world.waiting() for _ in range(CROWD)]
    for claim in crowd:
        world.session.release_later(claim)
    last = crowd[-1].n
    world.listener.at(world.clock.at_ms, lambda: Wake("", world.session.id, last, WAKE_GRANTED, 18))
    world.keep(world.clock.at_ms + CROWD * REQUEST_MS + TTL_MS)
    left = [command.n for command in world.wire.commands() if isinstance(command, Leave)]
    assert left.index(last) < 3
    assert sorted(left) == [claim.n for claim in crowd]
    assert not any(isinstance(command, Look) for command in world.wire.commands())


def test_a_wake_does_not_wait_for_the_releases() -> None:
    world = slow_world()
    waiting = world.waiting("b", look_ms=60_000)
    for claim in [world.waiting() for _ in range(CROWD)]:
        world.session.release_later(claim)
    woken_ms = world.clock.at_ms
    world.listener.at(woken_ms, lambda: Wake("", world.session.id, waiting.n, WAKE_GRANTED))
    world.keep(woken_ms + CROWD * REQUEST_MS + TTL_MS)
    assert [type(command) for command in world.wire.commands()].index(Look) < 3


def test_a_release_overtakes_the_claims_of_a_crowd_in_postgresql(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its asyncio wire has few workers; a holder's release waited behind a thousand claims."""
    ready, seen = threading.Event(), list[Command]()

    def on_a_connection(self: BlockingWire, command: Command, *about: object) -> Reply:
        ready.wait(60)
        seen.append(command)
        return Done() if isinstance(command, Leave) else Queued((), 1000)

    monkeypatch.setattr(BlockingWire, "_on_a_connection", on_a_connection)
    url = parse_url("postgresql://nobody@localhost/none?connections=1")
    wire = open_store(url, "asyncio").caller_wire()
    opening = Open("s", 1000, "owner", "", "", "")
    crowd = [Enter("s", n, (Place("lock", "a", "exclusive"),), open=opening) for n in range(1, 5)]
    commands: list[Command] = [*crowd, Leave("s", 9)]

    async def main() -> None:
        sent = [asyncio.create_task(wire.send(command, 60_000)) for command in commands]
        await asyncio.sleep(0)  # all of them start
        ready.set()
        await asyncio.gather(*sent)

    try:
        asyncio.run(main())
    finally:
        ready.set()
        wire.close()
    assert Leave("s", 9) in seen[:2], "the worker may have begun with a claim"
    claims = [command for command in seen if isinstance(command, Enter)]
    assert [claim.open for claim in claims] == [opening, None, None, None], "it is open by then"
