"""A client with a slow clock that did not wait for a lock was granted it ahead of waiting claims.

Claims are ordered by the time of their entry. One that waits enters no earlier than those it finds
in the queue, but one that does not wait entered by its own clock, on etcd as well (see
`seeds/etcd-try-overtakes-the-queue-31000491.toml`): readers with a slow clock starved a writer.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.stores.zookeeper.clock import LeadersClock
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import Client


def lock(name: str, mode: str) -> tuple[c.Place, ...]:
    return (c.Place("lock", name, mode),)


def test_a_reader_that_does_not_wait_does_not_pass_a_waiting_writer() -> None:
    server = ModelServer()
    reader, writer, slow = (Client(server, name) for name in ("reader", "writer", "slow"))
    assert isinstance(slow.enter(places=lock("other", "exclusive")), c.Granted)
    slow.store.context.clock = LeadersClock(-60_000)
    assert isinstance(reader.enter(places=lock("a", "shared")), c.Granted)
    assert isinstance(writer.enter(places=lock("a", "exclusive")), c.Queued)
    tried = slow.enter(2, places=lock("a", "shared"), queue=False, open=None)
    assert isinstance(tried, c.Busy)


def test_one_that_does_not_wait_does_not_pass_a_reservation() -> None:
    server = ModelServer()
    holder, both, slow = (Client(server, name) for name in ("holder", "both", "slow"))
    assert isinstance(slow.enter(places=lock("other", "exclusive")), c.Granted)
    slow.store.context.clock = LeadersClock(-60_000)
    assert isinstance(holder.enter(places=lock("a", "exclusive")), c.Granted)
    places = (*lock("a", "exclusive"), *lock("b", "exclusive"))
    assert isinstance(both.enter(places=places), c.Queued)
    tried = slow.enter(2, places=lock("b", "exclusive"), queue=False, open=None)
    assert isinstance(tried, c.Busy)
