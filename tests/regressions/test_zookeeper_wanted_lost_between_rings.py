"""A retained lock is given back, also if its owner is told of two locks at once.

The bell of a session names only the claims of its last ring. A listener that finds it rung more
than once looked at its waiting claims, but not at those it retains: who waited for the first of two
locks waited for the owner's next keep-alive, a third of the TTL.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client

LOCKS = [(c.Place("lock", name, "exclusive"),) for name in ("a", "b")]
BLOCK = 4096


@pytest.mark.parametrize("rings", [1, 2])
def test_both_owners_are_told(rings: int) -> None:
    server = ModelServer()
    owner, other = Client(server, "owner"), Client(server, "other")
    told: list[c.Wake] = []
    listener = owner.store.wake_listener("owner", told.append)
    for n, places in enumerate(LOCKS, 1):
        assert isinstance(owner.enter(n, places=places, block=BLOCK), c.Granted)
    run(listener.listen(0))
    for n, places in enumerate(LOCKS[:rings], 1):
        assert isinstance(other.enter(n, places=places), c.Queued)
    told += run(listener.listen(0))
    told += run(listener.listen(0))
    looked = {wake.n for wake in told if wake.what in (c.WAKE_WANTED, c.WAKE_LOOK)}
    assert looked == set(range(1, rings + 1))
    for n in looked:
        reply = owner.look(n)
        assert isinstance(reply, c.Granted)
        assert reply.wanted
