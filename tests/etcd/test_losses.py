"""Leases that expire, history that is compacted, claims that enter during a hand-over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.core.reasons import EXPIRED
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import parse
from lockfast.stores.etcd.batches import Proposal
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.layout import word_key
from lockfast.stores.registry import parse_url
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster

A = c.Place("lock", "orders/42", "exclusive")


def store_at(url: str) -> EtcdStore:
    return EtcdStore(parse(parse_url(url)))


def revoke_lease(cluster: EtcdCluster, store: EtcdStore, session: str) -> None:
    """Do at once what etcd does with a lease that is not renewed."""
    own = store.context.own.get(session)
    assert own is not None
    assert own.record is not None
    cluster.call("/v3/lease/revoke", {"ID": str(own.record.lease)})


def waiting(client: lockfast.Client, name: str) -> Callable[[], bool]:
    return lambda: client.inspect(name).waiting_count == 1


def test_a_waiter_whose_lease_ends_is_never_told_held(node: EtcdCluster) -> None:
    """It gets `Ended`, and the lock goes to a live claim."""
    url = node.url()
    store, other = store_at(url), store_at(url)
    send, send_other = store.caller_wire().send, other.caller_wire().send
    opened = {one: c.Open(one, 30_000, f"owner of {one}") for one in ("holder", "dead", "last")}

    def enter(session: str, sender: Any) -> c.Reply:
        reply: c.Reply = run(
            sender(c.Enter(session, 1, (A,), open=opened[session]), 5000),
        )
        return reply

    try:
        assert isinstance(enter("holder", send), c.Granted)
        assert isinstance(enter("dead", send_other), c.Queued)
        assert isinstance(enter("last", send), c.Queued)
        revoke_lease(node, other, "dead")
        run(send(c.Leave("holder", 1, (A,)), 5000))
        assert run(send_other(c.Look("dead", 1), 5000)) == c.Ended(EXPIRED)
        renewed = run(send_other(c.Renew("dead", 1, 0, 1, (1,)), 5000))
        assert renewed == c.Ended(EXPIRED)
        renewed = run(send(c.Renew("last", 1, 0, 1, (1,)), 5000))
        assert isinstance(renewed, c.Renewed)
        assert isinstance(dict(renewed.looks)[1], c.Granted)
    finally:
        store.close()
        other.close()


def test_a_waiting_client_hears_of_its_lost_lease(node: EtcdCluster) -> None:
    """Its acquire enters again, with a new session, and is granted in the end."""
    url = node.url()
    with lockfast.connect(url, ttl=3) as holder, lockfast.connect(url, ttl=3) as waiter:
        held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        thread.start()
        until(waiting(holder, "orders/42"), "it waits")
        (session,) = (one for one in waiter._core.sessions())
        revoke_lease(node, waiter._core.store, session.id)  # type: ignore[arg-type]
        until(lambda: bool(session.snapshot.ended), "it is told")
        until(waiting(holder, "orders/42"), "it waits again")
        held.release()
        thread.join(30)
        assert got[0].token > held.token
        assert got[0].state is lockfast.LeaseState.HELD
        got[0].release()


def test_a_dead_holder_is_noticed_when_its_lease_ends(node: EtcdCluster) -> None:
    """Not at the next keep-alive, which is ten seconds away: the lease is watched."""
    url = node.url()
    store = store_at(url)
    try:
        opening = c.Open("dead", 2_000, "owner")
        granted = run(store.caller_wire().send(c.Enter("dead", 1, (A,), open=opening), 5000))
        assert isinstance(granted, c.Granted)
        with lockfast.connect(url, ttl=30) as client:
            lease = client.lock("orders/42").acquire(timeout=9)
            assert lease.token > granted.token
            lease.release()
    finally:
        store.close()


def test_compaction_during_a_long_wait_loses_no_wake_up(node: EtcdCluster) -> None:
    url = node.url()
    with lockfast.connect(url, ttl=60) as holder, lockfast.connect(url, ttl=60) as waiter:
        held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        thread.start()
        until(waiting(holder, "orders/42"), "it waits")
        (session,) = (one for one in waiter._core.sessions())
        listener: Any = session.listener
        stream = listener._watcher._stream
        until(lambda: len(listener._armed) == 1 and stream.is_open(), "it listens")
        # The watch breaks; the hand-over and a compaction happen before it is back.
        listener._retry_ms = 1000
        stream._connection.stream.socket.shutdown(2)
        until(lambda: not stream.is_open(), "it is interrupted")
        held.release()
        holder.lock("another").acquire().release()
        revision = node.call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        node.call("/v3/kv/compaction", {"revision": revision, "physical": True})
        thread.join(10)
        assert got, "the waiter did not hear of its grant"
        got[0].release()


def test_a_claim_of_higher_priority_in_the_middle_of_a_hand_over(
    node: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It enters after the releasing client has read the queue and before it writes: one holder."""
    url = node.url()
    with lockfast.connect(url, ttl=60) as holder, lockfast.connect(url, ttl=60) as other:
        other.lock("warm-up").acquire().release()
        store = store_at(url)
        wire = store.caller_wire()
        held = holder.lock("orders/42").acquire()
        threads = []
        leases: dict[str, lockfast.Lease] = {}

        def take(name: str, priority: int) -> None:
            leases[name] = other.lock("orders/42", priority=priority).acquire()

        threads.append(threading.Thread(target=take, args=("patient", 0)))
        threads[0].start()
        until(waiting(holder, "orders/42"), "one waits")
        send, entered = Gateway.txn, list[bool]()
        (session,) = (one.id for one in other._core.sessions())
        inbox = word_key(session, 2)

        async def txn(self: Gateway, proposal: Proposal, until_ms: int) -> Any:
            if inbox in proposal.writes and not entered:
                entered.append(True)
                opening = c.Open("hurried", 60_000, "hurried")
                reply = await wire.send(
                    c.Enter("hurried", 1, (A,), priority=9, head_start_ms=90_000, open=opening),
                    5000,
                )
                assert isinstance(reply, c.Queued), reply
            return await send(self, proposal, until_ms)

        monkeypatch.setattr(Gateway, "txn", txn)
        held.release()
        assert entered, "the interleaving was not forced"
        hurried = run(wire.send(c.Look("hurried", 1), 5000))
        assert isinstance(hurried, c.Granted), "the higher priority goes first"
        view = holder.inspect("orders/42")
        assert (view.holder_count, view.waiting_count) == (1, 1)
        run(wire.send(c.Leave("hurried", 1, (A,)), 5000))
        threads[0].join(30)
        assert leases["patient"].token > hurried.token > held.token
        leases["patient"].release()
        store.close()


def test_the_log_says_where_it_begins_after_a_compaction(node: EtcdCluster) -> None:
    """A watcher from before is told of the gap, with the current state."""
    url = node.url()
    with lockfast.connect(url, ttl=60) as client:
        events = iter(client.watch())
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.append(next(events).what))
        reader.start()

        def is_told() -> bool:
            client.lock("orders/42").acquire().release()
            return bool(told)

        until(is_told, "told")
        reader.join()
        for _ in range(12):
            client.lock("orders/42").acquire().release()
        revision = node.call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        node.call("/v3/kv/compaction", {"revision": revision, "physical": True})
        lease = client.lock("orders/43").acquire()
        with pytest.raises(lockfast.WatchGapError) as gap:
            for _ in range(1000):  # what was read with the first event is reported first
                next(events)
        assert [info.name for info in gap.value.snapshot] == ["orders/43"]
        lease.release()
