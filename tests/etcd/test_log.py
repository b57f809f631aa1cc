"""The log is written while somebody reads it, and says what it does not know."""

from __future__ import annotations

import time
from time import monotonic
from typing import Any

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.rows import LOG_KEY
from tests.etcd.test_losses import store_at
from tests.servers.etcd import EtcdCluster


def written(store: EtcdStore) -> int:
    """How many entries the log has."""
    wire: Any = store.caller_wire()
    reads = {"success": [store.shared.keys.range(LOG_KEY)]}
    answer = run(wire.gateway.txn(reads, monotonic() + 20, repeatable=True))
    found = store.shared.keys.found(answer["responses"][0]).kvs
    wire.close()
    return found[0].version if found else 0


def read(store: EtcdStore, after: int | None) -> c.EventsReply:
    reply = run(store.caller_wire().send(c.Events(after), 20_000))
    assert isinstance(reply, c.EventsReply)
    return reply


def test_nobody_reads_the_log_and_nobody_writes_it(node: EtcdCluster) -> None:
    url = node.url()
    store = store_at(url)
    with lockfast.connect(url, ttl=60) as client:
        client.lock("orders/42").acquire().release()
        assert written(store) == 0
        begin = read(store, None).end
        client.lock("orders/42").acquire().release()
        assert written(store) == 2
        told = read(store, begin).events
        assert [event.what for event in told] == ["granted", "released"]
    store.close()


def test_a_lock_taken_before_the_first_look_is_given_back_with_a_word(node: EtcdCluster) -> None:
    """Whoever holds it believes that nobody reads, and is told otherwise."""
    url = node.url()
    store = store_at(url)
    with lockfast.connect(url, ttl=60) as client:
        lease = client.lock("orders/42").acquire()
        begin = read(store, None).end
        lease.release()
        assert [event.what for event in read(store, begin).events] == ["released"]
    store.close()


def test_what_was_not_written_is_told_as_a_gap(
    node: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by those who have counted before: all readers number alike."""
    url = node.url()
    store, other = store_at(url), store_at(url)
    with lockfast.connect(url, ttl=60) as client:
        hour_ago_ns = time.time_ns() - 3600 * 10**9
        monkeypatch.setattr(
            "lockfast.stores.etcd.journal.time.time_ns", lambda: hour_ago_ns
        )  # long over by now
        first = [read(one, None).end for one in (store, other)]
        monkeypatch.undo()
        client.lock("orders/42").acquire().release()
        again = read(store, first[0])
        assert again.events == ()
        assert again.oldest > first[0] + 1, "nothing says that something is missing"
        client.lock("orders/43").acquire().release()
        told, retold = read(store, again.end), read(other, again.end)
        assert [event.name for event in told.events] == ["orders/43", "orders/43"]
        assert told == retold
    store.close()
    other.close()


def test_a_reader_finds_its_place_after_a_gap(node: EtcdCluster) -> None:
    """Though it has counted nothing itself."""
    url = node.url()
    with lockfast.connect(url, ttl=60) as client:
        client.lock("orders/42").acquire().release()
        store, late = store_at(url), store_at(url)
        begin = read(store, None).end
        assert begin > 0, "what was not written is not counted as nothing"
        client.lock("orders/43").acquire().release()
        assert read(late, begin) == read(store, begin)
        assert read(late, 0).oldest == begin + 1
        store.close()
        late.close()
