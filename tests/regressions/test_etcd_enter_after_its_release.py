"""An enter that was repeated while its claim was being released left a claim that nobody knew.

A keep-alive found a claim revoked and sent its release, while the caller, whose first enter had no
reply, entered again. The release had looked for the claim before the enter was sent, and when it
was done the client forgot the claim. It stayed in the queue, and its slot was given to the next
claim: etcd refused every transaction that touched both. See the seed
`seeds/etcd-enter-after-its-release-910049963.toml`. ZooKeeper's store could do the same.
"""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.zookeeper import ZooKeeperStore
from tests.etcd.harness import address_of
from tests.etcd.model import ModelNetwork as EtcdNetwork
from tests.etcd.model import ModelServer as EtcdServer
from tests.zookeeper.model import ModelNetwork as ZooKeeperNetwork

A = (c.Place("lock", "a", "exclusive"),)
TIMEOUT_MS = 5_000


def etcd() -> EtcdStore:
    return EtcdStore(address_of("etcd://127.0.0.1:1"), EtcdNetwork(EtcdServer()))


def zookeeper() -> ZooKeeperStore:
    return ZooKeeperStore("zookeeper://model", "/lockfast/default", ZooKeeperNetwork())


@pytest.mark.parametrize("make_store", [etcd, zookeeper])
def test_no_enter_is_sent_once_its_release_has_begun(make_store: Any) -> None:
    store = make_store()
    wire = store.caller_wire()
    run(wire.send(c.Open("s", 30_000, "owner"), TIMEOUT_MS))
    own = store.context.own.get("s")
    own.finish(1)  # what a release does first
    reply = run(wire.send(c.Enter("s", 1, A), TIMEOUT_MS))
    assert isinstance(reply, c.Refused)
    assert reply.why == c.WHY_FINISHED
    assert isinstance(run(wire.send(c.Enter("s", 2, A), TIMEOUT_MS)), c.Granted)


@pytest.mark.parametrize("make_store", [etcd, zookeeper])
def test_an_enter_that_has_begun_is_not_sent_after_its_release(make_store: Any) -> None:
    """The release comes between the checks of the enter and its request."""
    store = make_store()
    wire = store.caller_wire()
    run(wire.send(c.Open("s", 30_000, "owner"), TIMEOUT_MS))
    own = store.context.own.get("s")
    doubt = own.doubt

    def release_first(n: int, claim: Any) -> Any:
        own.doubt = doubt
        own.finish(n)
        return doubt(n, claim)

    own.doubt = release_first
    reply = run(wire.send(c.Enter("s", 1, A), TIMEOUT_MS))
    assert isinstance(reply, c.Refused)
    assert not own.claims
    assert isinstance(run(wire.send(c.Enter("s", 2, A), TIMEOUT_MS)), c.Granted)
