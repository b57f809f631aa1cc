"""Whatever a node contains: a session goes on, and commands raise a typed error.

A bell is read by a callback on kazoo's connection thread. If it was of another schema, or had a
token that is out of range, the error ended that thread, and with it the session: all leases of the
client were lost, and stayed locked until ZooKeeper had ended the session. A number without end
(`1e999`) or a foreign node in a bucket was reported as OverflowError or ValueError.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from lockfast.core import commands as c
from lockfast.errors import StoreError
from lockfast.runtimes.threads import run
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper import transport as t
from lockfast.stores.zookeeper.address import parse
from lockfast.stores.zookeeper.network import KazooNetwork
from tests.processes.crew import until
from tests.servers.zookeeper import ZooKeeperEnsemble
from tests.zookeeper.model import ModelServer
from tests.zookeeper.test_long_lines import A, Client

BASE = "[0,0,1048576,2]"
BELLS = [
    "[[0,0,1048576,99],[],[]]",  # of another schema
    '[[9007199254740991,0,1048576,2],[[1,"granted",0]],[]]',
    f'[{BASE},[[1e999,"look",0]],[]]',
    f'[{BASE},[],[["lock","a",9,[{BASE},[1e999,0,"",[]],[]]]]]',
    f'[{BASE},[],[["lock","a",9,[{BASE},[0,0,"",[]],[[]]]]]]',
    "[[1e999]]",
    "\x00",
    "",
]


@pytest.mark.parametrize("content", BELLS)
def test_claims_are_looked_at_if_a_bell_is_not_readable(content: str) -> None:
    server = ModelServer()
    holder, waiter = Client(server, "holder"), Client(server, "waiter")
    holder.enter()
    listener = waiter.store.wake_listener("waiter", lambda _: None)
    assert isinstance(waiter.enter(), c.Queued)
    run(listener.listen(0))
    own = holder.store.context.own.get("holder")
    assert own is not None
    assert own.link is not None
    own.link.submit([t.Set(holder.store.context.paths.bell("waiter"), content.encode())])
    wakes = run(listener.listen(0))
    assert [(wake.n, wake.what) for wake in wakes] == [(1, c.WAKE_LOOK)]


def test_a_callback_that_fails_does_not_end_the_session() -> None:
    with ZooKeeperEnsemble() as node:
        network = KazooNetwork(parse(parse_url(node.url())))
        link = network.link(10_000, lambda _: None, lambda: None, pings=True)
        run(network.keeper.wait(link.open(), 10_000))
        answers: list[t.Answer | None] = []

        def fail(answer: t.Answer | None) -> None:
            answers.append(answer)
            raise KeyError(answer)

        link.watch("/zookeeper", fail)
        until(lambda: bool(answers), "it is called")
        (answer,) = run(network.keeper.wait(link.submit([t.Get("/zookeeper")]), 10_000))
        assert not answer.error
        link.close()


@pytest.mark.parametrize("node", ["x", "a.b", "²" * 32 + ".s.².²", f"{'0' * 32}.s.1.x"])
def test_a_foreign_node_in_a_bucket_is_no_claim(node: str) -> None:
    server = ModelServer()
    clients = [Client(server, f"s{i}") for i in range(4)]
    for client in clients:
        client.enter()
    paths = clients[0].store.context.paths
    above = paths.resource(A.kind, A.name)
    (bucket,) = (one for one in server.state.nodes[above].children if one.startswith("q"))
    own = clients[0].store.context.own.get(clients[0].id)
    assert own is not None
    assert own.link is not None
    own.link.submit([t.Create(f"{above}/{bucket}/{node}")])
    for here, behind in pairwise(clients):
        assert here.leave() == c.Done()
        assert isinstance(behind.look(), c.Granted)


def test_a_number_without_end_is_a_typed_error() -> None:
    server = ModelServer()
    client = Client(server, "client")
    client.enter()
    paths = client.store.context.paths
    document = f'[{BASE},[1e999,0,"",[]],[]]'
    own = client.store.context.own.get("client")
    assert own is not None
    assert own.link is not None
    own.link.submit([t.Set(paths.resource(A.kind, A.name), document.encode())])
    with pytest.raises(StoreError, match="cannot be read"):
        client.send(c.Inspect(A.kind, A.name, 1))
