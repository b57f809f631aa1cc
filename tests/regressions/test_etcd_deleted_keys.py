"""A lock on etcd cost more with every acquire, until etcd compacted its history.

Every claim had keys of its own names, and etcd visits deleted keys, too, whenever it reads or
compares a range. After 100,000 acquires of one lock, the next took a tenth of a second.
"""

from __future__ import annotations

from base64 import b64decode

import pytest

from lockfast.core import commands as c
from lockfast.stores.etcd.context import MARKED_EVERY
from lockfast.stores.etcd.transport import Json
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer, parts_of

ROUNDS = 200
LOCK = c.Place("lock", "orders/42", "exclusive")
READ = c.Place("lock", "orders/42", "shared")
PERMIT = c.Place("semaphore", "orders/42", "permit", 1, 3)
BRANCH = c.Place("tree", "orders/42", "intent_exclusive")


class Visiting(ModelServer):
    """Counts the keys that etcd visits for ranges, of every transaction that it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.visited = 0

    def call(self, path: str, body: Json) -> Json:
        for part in parts_of(body):
            if "range_end" in part:
                start, stop = b64decode(part["key"]), b64decode(part["range_end"])
                self.visited += self.gateway.state.mvcc.visited(start, stop)
        return super().call(path, body)

    def take_visited(self) -> int:
        visited, self.visited = self.visited, 0
        return visited


def _visited_by_pairs(server: Visiting, client: Client, numbers: range, enter: c.Enter) -> int:
    server.take_visited()
    for n in numbers:
        assert isinstance(client.send(enter._replace(n=n)), c.Granted)
        client.send(c.Leave(client.session, n, enter.places))
    return server.take_visited()


@pytest.mark.parametrize(
    "enter",
    [
        pytest.param(c.Enter("s", 0, (LOCK,)), id="exclusive"),
        pytest.param(c.Enter("s", 0, (READ,)), id="shared"),
        pytest.param(c.Enter("s", 0, (PERMIT,)), id="permit"),
        pytest.param(c.Enter("s", 0, (BRANCH,)), id="tree"),
        pytest.param(c.Enter("s", 0, (LOCK,), lock_delay_ms=1000), id="lock_delay"),
        pytest.param(c.Enter("s", 0, (LOCK,), max_hold_ms=1000), id="max_hold"),
        pytest.param(c.Enter("s", 0, (LOCK, LOCK._replace(name="b"))), id="several"),
    ],
)
def test_a_free_lock_costs_the_same_however_often_it_was_used(enter: c.Enter) -> None:
    server = Visiting()
    client = Client(server, "s")
    _visited_by_pairs(server, client, range(1, 2), enter)
    first = _visited_by_pairs(server, client, range(2, ROUNDS), enter)
    assert _visited_by_pairs(server, client, range(ROUNDS + 2, 2 * ROUNDS), enter) == first


@pytest.mark.parametrize("place", [LOCK, READ, PERMIT], ids=["exclusive", "shared", "permit"])
def test_readers_that_share_a_lock_cost_the_same_however_often_it_was_used(place: c.Place) -> None:
    """The names of a session's keys are used again, also while it has other claims."""
    server = Visiting()
    holder, client = Client(server, "s0"), Client(server, "s")
    other = place._replace(name="others") if place is LOCK else place
    assert isinstance(holder.send(c.Enter("s0", 1, (other,))), c.Granted)
    assert isinstance(client.send(c.Enter("s", 1, (other._replace(name="kept"),))), c.Granted)
    enter = c.Enter("s", 0, (place,))
    _visited_by_pairs(server, client, range(2, 3), enter)
    first = _visited_by_pairs(server, client, range(3, ROUNDS), enter)
    assert _visited_by_pairs(server, client, range(ROUNDS + 3, 2 * ROUNDS), enter) == first


def _visited_by_hand_overs(server: Visiting, crew: list[Client], holds: list[int]) -> int:
    """Let two clients hand the lock to each other; return the keys visited."""
    server.take_visited()
    for _ in range(ROUNDS):
        holder, waiter = crew
        server.now_us += 1000
        holds[1] += 1
        assert isinstance(waiter.enter(holds[1]), c.Queued)
        holder.listen()
        holder.leave(holds[0])
        waiter.listen()
        assert waiter.granted.pop() == holds[1]
        crew.reverse()
        holds.reverse()
    return server.take_visited()


def test_a_hand_over_costs_the_same_however_many_there_were() -> None:
    server = Visiting()
    crew, holds = [Client(server, "s0"), Client(server, "s1")], [1, 0]
    assert isinstance(crew[0].enter(1), c.Granted)
    first = _visited_by_hand_overs(server, crew, holds)
    for _ in range(3):
        _visited_by_hand_overs(server, crew, holds)
    assert _visited_by_hand_overs(server, crew, holds) <= 1.2 * first


def test_a_free_lock_costs_little_after_any_number_of_hand_overs() -> None:
    server = Visiting()
    crew, holds = [Client(server, "s0"), Client(server, "s1")], [1, 0]
    assert isinstance(crew[0].enter(1), c.Granted)
    for _ in range(5):
        _visited_by_hand_overs(server, crew, holds)
    crew[0].leave(holds[0])
    requests, first = server.requests, holds[0] + 1
    enter = c.Enter(crew[0].session, 0, (LOCK,))
    visited = _visited_by_pairs(server, crew[0], range(first, first + ROUNDS), enter)
    # At most one acquire finds that the start of the queue is another than it knew.
    assert server.requests - requests <= 2 * ROUNDS + 2
    # Each of the two clients has marked the start within its last MARKED_EVERY hand-overs.
    assert visited / ROUNDS < 8 * MARKED_EVERY < 5 * ROUNDS
