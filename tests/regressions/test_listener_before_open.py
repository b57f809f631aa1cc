"""A listener that connects while its session's Open is in flight must not end the session.

PostgreSQL's listener read the state of its session as soon as it was connected. If the Open was
still in flight, the store did not know the session, the client concluded that it had ended and
opened another, and the first one stayed in the queue until its TTL expired. Found by the first
simulator run of PostgreSQL, seed 5: with slow locks, sessions accumulated without end.
"""

from __future__ import annotations

import pytest

from lockfast.core.commands import Enter, Open
from lockfast.sim.mix import Mix
from lockfast.sim.world import World


@pytest.mark.parametrize("seed", range(3))
def test_each_client_opens_one_session(seed: int) -> None:
    # Commits take longer than the connection of a listener.
    slow = {"times": 30, "ms": (400, 800), "each_ms": 40}
    world = World(Mix({"turns": {}}, {"slow": slow}, store="postgresql", clients=4), seed)
    run = world.run()
    opened = {
        request.session
        for _, request, _ in run.steps
        if isinstance(request, Open) or (isinstance(request, Enter) and request.open is not None)
    }
    world.disband()
    assert run.problems == []
    assert len(opened) == 4
