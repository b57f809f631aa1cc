"""The lock_delay of a reader has not begun while the reader holds the lock, however many there are.

Of more than 17 holders etcd's store read only the first ones, and took the delays of the others for
those of holders that had vanished: nothing more was granted until the delay was over.
"""

from __future__ import annotations

from lockfast.core import commands as c
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer

READ = (c.Place("lock", "orders/42", "shared"),)
READERS = 40
DELAY_MS = 60_000


def test_readers_beyond_the_first_are_granted() -> None:
    client = Client(ModelServer(), "s")
    for n in range(1, READERS + 1):
        enter = c.Enter("s", n, READ, lock_delay_ms=DELAY_MS)
        assert isinstance(client.send(enter), c.Granted)
    view = client.send(c.Inspect("lock", "orders/42"))
    assert isinstance(view, c.ResourceView)
    assert (view.holder_count, view.closed_ms) == (READERS, 0)


def test_the_delay_of_one_that_vanished_begins() -> None:
    server = ModelServer()
    client, other = Client(server, "s"), Client(server, "r")
    for n in range(1, READERS + 1):
        client.send(c.Enter("s", n, READ))
    assert isinstance(other.send(c.Enter("r", 1, READ, lock_delay_ms=DELAY_MS)), c.Granted)
    client.send(c.Expel("r", "it died"))
    assert isinstance(client.send(c.Enter("s", READERS + 1, READ)), c.Queued)
