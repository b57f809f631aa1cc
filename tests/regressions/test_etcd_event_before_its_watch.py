"""A watcher is told of an event that was written before its listener had subscribed.

etcd's listener began with the revision at which it subscribed, so it did not report what was
written between the watcher's reading of the log and that moment. The watcher then waited for a
third of its TTL. The other servers' listeners report this as missed wakes, and the keeper did not
pass those on to watchers (`tests/flow/test_keeper.py`). Found on a busy machine.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

PLACE = c.Place("lock", "orders/42", "exclusive")


def test_the_first_listen_tells_it() -> None:
    with EtcdCluster(1) as node:
        store = EtcdStore(address_of(node.url("watched")))
        listener = store.wake_listener("watcher", lambda wake: None)
        wire = store.caller_wire()
        run(wire.send(c.Events(None), 5000))  # from now on events are logged
        run(wire.send(c.Open("watcher", 60_000, "w", inbox=listener.inbox), 5000))
        assert run(wire.send(c.Watch("watcher", True), 5000)) == c.Done()
        run(wire.send(c.Enter("watcher", 1, (PLACE,)), 5000))
        assert c.WAKE_EVENTS in [wake.what for wake in run(listener.listen(5000))]
        listener.close()
        store.close()
