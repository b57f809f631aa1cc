"""Long queues: claims are served in order, and a hand-over costs the same at any length."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper.clock import LeadersClock
from lockfast.stores.zookeeper.transport import Children, Get, Multi, Request
from lockfast.stores.zookeeper.wire import ZooKeeperWire
from tests.zookeeper.model import ModelNetwork, ModelServer

A = c.Place("lock", "a", "exclusive")
OPEN_MS = 30_000


class Client:
    """One session without a keeper, on its own store object."""

    def __init__(self, server: ModelServer, session: str) -> None:
        network = ModelNetwork(server)
        self.id = session
        self.store = ZooKeeperStore("zookeeper://model", "/lockfast/default", network)
        wire = self.store.caller_wire()
        assert isinstance(wire, ZooKeeperWire)
        self._wire = wire
        self._network = network

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, OPEN_MS))

    def enter(self, n: int = 1, **rest: Any) -> c.Reply:
        opening = c.Open(self.id, OPEN_MS, f"owner of {self.id}")
        return self.send(c.Enter(self.id, n, (A,), open=opening)._replace(**rest))

    def leave(self, n: int = 1) -> c.Reply:
        return self.send(c.Leave(self.id, n))

    def look(self, n: int = 1) -> c.Reply:
        return self.send(c.Look(self.id, n))


def test_everybody_is_served_in_order_of_arrival() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(150)]
    assert isinstance(clients[0].enter(), c.Granted)
    for client in clients[1:]:
        assert isinstance(client.enter(), c.Queued)
    tokens = []
    for here, behind in pairwise(clients):
        assert here.leave() == c.Done()
        reply = behind.look()
        assert isinstance(reply, c.Granted)
        tokens.append(reply.token)
    assert tokens == sorted(set(tokens))


def test_who_gives_up_in_a_bucket_is_passed_over_and_so_is_the_dead() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(100)]
    for client in clients:
        client.enter()
    for client in clients[20:60:2]:
        assert client.leave() == c.Done()
    for client in clients[61:80]:
        own = client.store.context.own.get(client.id)
        assert own is not None
        assert own.link is not None
        own.link.close()
    left = [
        client
        for i, client in enumerate(clients)
        if i not in range(20, 60, 2) and i not in range(61, 80)
    ]
    for here, behind in pairwise(left):
        here.leave()
        assert isinstance(behind.look(), c.Granted), behind.id


def test_a_head_start_is_kept_in_a_long_line() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(60)]
    for client in clients:
        client.enter()
    late = Client(server, "late")
    late.enter(priority=1, head_start_ms=3_600_000)
    clients[0].leave()
    assert isinstance(late.look(), c.Granted)
    assert isinstance(clients[1].look(), c.Queued)


@pytest.mark.parametrize("count", [100, 400])
def test_a_hand_over_reads_no_more_in_a_longer_line(count: int) -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:04}") for i in range(count)]
    for client in clients:
        client.enter()
    before, grants = server.bytes_read, 40
    for client in clients[:grants]:
        client.leave()
    per_grant = (server.bytes_read - before) / grants
    print(f"{count} waiting: {per_grant:.0f} bytes read per grant")
    assert per_grant < 16_000


@pytest.mark.parametrize("moment", [Children, Get, Multi])
def test_a_claim_that_joins_while_its_bucket_is_read_is_not_passed_over(
    moment: type[Request],
) -> None:
    """A release reads a bucket and moves its claims; another claim joins in between."""
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(14)]
    late = Client(server, "late")
    for client in clients:
        client.enter()
    while moves_a_bucket(server, clients[0], moment, late) is False:
        assert isinstance(clients[1].look(), c.Granted)
        clients.pop(0)
    for here, behind in pairwise([*clients[1:], late]):
        assert isinstance(here.look(), c.Granted), here.id
        here.leave()
        assert isinstance(behind.look(), c.Granted), behind.id


def moves_a_bucket(
    server: ModelServer, holder: Client, moment: type[Request], late: Client
) -> bool:
    """Release the lock; if that needs a bucket, another claim joins before the given request."""
    is_moving = False

    def join(request: Request) -> None:
        nonlocal is_moving
        is_moving |= isinstance(request, Children) and "/q" in request.path
        if is_moving and isinstance(request, moment):
            server.before = None
            assert isinstance(late.enter(), c.Queued)

    server.before = join
    assert holder.leave() == c.Done()
    server.before = None
    return is_moving


def test_many_that_give_up_do_not_touch_the_document() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(100)]
    for client in clients:
        client.enter()
    version = server.state.nodes["/lockfast/default/n/lock:a"].version
    for client in clients[30:]:
        assert client.leave() == c.Done()
    assert server.state.nodes["/lockfast/default/n/lock:a"].version == version
    for here, behind in pairwise(clients[:30]):
        here.leave()
        assert isinstance(behind.look(), c.Granted)


def test_claims_that_join_a_bucket_do_not_touch_the_document() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(60)]
    for client in clients[:20]:
        client.enter()
    version = server.state.nodes["/lockfast/default/n/lock:a"].version
    for client in clients[20:]:
        assert isinstance(client.enter(), c.Queued)
    assert server.state.nodes["/lockfast/default/n/lock:a"].version == version


def test_a_queue_that_was_long_leaves_nothing_behind() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(100)]
    for client in clients:
        client.enter()
    for client in clients:
        client.leave()
    server.state.reap_containers()
    assert not server.state.nodes["/lockfast/default/n"].children


def test_a_claim_follows_all_that_joined_before_it_arrived() -> None:
    """What a client has read for its earlier claims does not show who has joined since."""
    server = ModelServer()
    slow, fast = Client(server, "slow"), Client(server, "fast")
    for n in range(1, 21):
        slow.enter(n)
    fast.send(c.Open(fast.id, OPEN_MS, "owner"))
    fast.store.context.clock = LeadersClock(1000)
    assert isinstance(fast.enter(1), c.Queued)
    assert isinstance(slow.enter(21), c.Queued)
    for n in range(1, 21):
        slow.leave(n)
    assert isinstance(fast.look(1), c.Granted)
    assert isinstance(slow.look(21), c.Queued)


def test_an_ended_session_leaves_its_buckets() -> None:
    server = ModelServer()
    here, there = Client(server, "here"), Client(server, "there")
    assert isinstance(here.enter(1), c.Granted)
    for n in range(1, 5):
        there.enter(n)
        here.enter(n + 1)
    here.send(c.RevokeSession("there", "here", "test"))
    reply = here.send(c.Inspect("lock", "a", 16))
    assert isinstance(reply, c.ResourceView)
    assert [claim.session for claim in reply.waiting] == ["here"] * 4
    assert reply.waiting_count == 4


def test_claims_of_several_priorities_wait_in_the_order_of_their_ranks() -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i:03}") for i in range(40)]
    clients[0].enter()
    expected = []
    for i, client in enumerate(clients[1:]):
        head_start_ms = (i % 4) * 1000
        server.now_us += 300_000
        assert isinstance(client.enter(priority=i % 4, head_start_ms=head_start_ms), c.Queued)
        expected.append((300 * i - head_start_ms, client.id))
    holder, by_id = clients[0], {client.id: client for client in clients}
    for _, following in sorted(expected):
        holder.leave()
        holder = by_id[following]
        assert isinstance(holder.look(), c.Granted), following


def test_a_bucket_that_the_server_has_deleted_is_replaced() -> None:
    """The server deletes containers whose last child is gone; a client may not have noticed."""
    server = ModelServer()
    holder, first, late = (Client(server, session) for session in ("holder", "first", "late"))
    assert isinstance(holder.enter(), c.Granted)
    assert isinstance(first.enter(1), c.Queued)
    assert isinstance(late.enter(1), c.Queued)
    assert late.leave(1) == c.Done()
    server.state.reap_containers()
    assert not any("/q" in path for path in server.state.nodes)
    assert isinstance(late.enter(2), c.Queued)
    holder.leave()
    assert isinstance(first.look(1), c.Granted)
    first.leave(1)
    assert isinstance(late.look(2), c.Granted)


def test_a_claim_whose_join_is_in_doubt_is_found_by_its_name() -> None:
    """The client did not hear the sequence number of its node."""
    server = ModelServer()
    holder, first, doubtful = (Client(server, one) for one in ("holder", "first", "doubtful"))
    assert isinstance(holder.enter(), c.Granted)
    assert isinstance(first.enter(), c.Queued)
    assert isinstance(doubtful.enter(1), c.Queued)
    own = doubtful.store.context.own.get(doubtful.id)
    assert own is not None
    claim = own.claims[1]
    claim.node = claim.node.rpartition(".")[0] + "."
    own.doubted.add(1)
    assert isinstance(doubtful.enter(1), c.Queued)
    queue = [path for path in server.state.nodes if "/q" in path and ".doubtful.1." in path]
    assert len(queue) == 1, "it did not join twice"
    assert queue[0].endswith(own.claims[1].node)
    assert doubtful.leave(1) == c.Done()
    assert not any(".doubtful.1." in path for path in server.state.nodes)


def test_a_claim_that_does_not_wait_is_not_refused_from_memory() -> None:
    server = ModelServer()
    here, there = Client(server, "here"), Client(server, "there")
    assert isinstance(here.enter(1), c.Granted)
    there.send(c.Open(there.id, OPEN_MS, "owner"))
    there.send(c.Revoke(here.id, 1, "there", "test"))
    assert isinstance(here.enter(2, queue=False), c.Granted)


def test_a_holder_that_heard_of_the_first_waiter_hands_over_in_one_write() -> None:
    server = ModelServer()
    holder, waiter = Client(server, "holder"), Client(server, "waiter")
    assert isinstance(holder.enter(), c.Granted)
    listener = holder.store.wake_listener(holder.id, lambda wake: None)
    listener.interrupt()
    run(listener.listen(0))
    assert isinstance(waiter.enter(), c.Queued)
    listener.interrupt()
    run(listener.listen(0))
    sent: list[Request] = []
    server.before = sent.append
    assert holder.leave() == c.Done()
    assert [type(request) for request in sent] == [Multi]
    assert isinstance(waiter.look(), c.Granted)
    listener.close()
