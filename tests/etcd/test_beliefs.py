"""What a client believes is compared: a session that is over, an answer that was lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core.reading import EXPIRED
from lockfast.errors import OutcomeUnknownError
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.gateway import Gateway
from tests.etcd.harness import writes
from tests.etcd.test_losses import A, revoke_lease, store_at
from tests.servers.etcd import EtcdCluster

B = c.Place("lock", "orders/43", "exclusive")


@pytest.fixture
def stores(node: EtcdCluster) -> Iterator[tuple[EtcdStore, EtcdStore]]:
    """Two clients of one namespace."""
    url = node.url()
    one, other = store_at(url), store_at(url)
    yield one, other
    one.close()
    other.close()


def send(store: EtcdStore, command: c.Command) -> c.Reply:
    reply: c.Reply = run(store.caller_wire().send(command, 20_000))
    return reply


def enter(store: EtcdStore, session: str, n: int, place: c.Place) -> c.Reply:
    opening = c.Open(session, 60_000, f"owner of {session}")
    return send(store, c.Enter(session, n, (place,), open=opening))


def test_a_session_believed_to_live_is_granted_nothing_once_it_is_over(
    node: EtcdCluster, stores: tuple[EtcdStore, EtcdStore]
) -> None:
    store, _ = stores
    assert isinstance(enter(store, "dead", 1, A), c.Granted)
    revoke_lease(node, store, "dead")
    assert enter(store, "dead", 2, B) == c.Ended(EXPIRED)


def test_a_session_believed_to_live_stands_in_no_line_once_it_is_over(
    node: EtcdCluster, stores: tuple[EtcdStore, EtcdStore]
) -> None:
    store, other = stores
    assert isinstance(enter(other, "holder", 1, A), c.Granted)
    assert isinstance(enter(store, "dead", 1, A), c.Queued)
    revoke_lease(node, store, "dead")
    assert enter(store, "dead", 2, A) == c.Ended(EXPIRED)
    view = send(other, c.Inspect("lock", A.name))
    assert isinstance(view, c.ResourceView)
    assert all(claim.n != 2 for claim in view.waiting)


def test_the_lock_of_a_holder_whose_session_key_is_gone_is_free_at_once(
    node: EtcdCluster, stores: tuple[EtcdStore, EtcdStore]
) -> None:
    """For whoever will not wait: it meets the dead one on its way."""
    store, other = stores
    held = enter(store, "dead", 1, A)
    assert isinstance(held, c.Granted)
    assert isinstance(enter(other, "next", 1, B), c.Granted)
    revoke_lease(node, store, "dead")
    granted = send(other, c.Enter("next", 2, (A,), queue=False))
    assert isinstance(granted, c.Granted)
    assert granted.token > held.token


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """As often as it has entries, a transaction is carried out and its answer is lost."""
    losses: list[bool] = []
    txn = Gateway.txn

    async def losing(gateway: Gateway, body: Any, until_s: float, **rest: Any) -> Any:
        answer = await txn(gateway, body, until_s, **rest)
        if losses and writes(body) and answer.get("succeeded"):
            losses.pop()
            raise OutcomeUnknownError("etcd", "the answer was lost")
        return answer

    monkeypatch.setattr(Gateway, "txn", losing)
    return losses


def test_a_lost_answer_is_settled_by_the_number_of_the_claim(
    stores: tuple[EtcdStore, EtcdStore], lost: list[bool]
) -> None:
    """Entered once, left once, and both are told as if nothing had happened."""
    store, other = stores
    assert isinstance(enter(store, "session", 1, B), c.Granted)
    lost.append(True)
    granted = enter(store, "session", 2, A)
    assert not lost, "no answer was lost"
    assert isinstance(granted, c.Granted)
    view = send(other, c.Inspect("lock", A.name))
    assert isinstance(view, c.ResourceView)
    assert [(claim.n, claim.token) for claim in view.holders] == [(2, granted.token)]
    lost.append(True)
    assert send(store, c.Leave("session", 2, (A,))) == c.Done()
    assert not lost, "no answer was lost"
    assert isinstance(enter(other, "next", 1, A), c.Granted)
