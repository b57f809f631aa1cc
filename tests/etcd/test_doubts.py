"""Where a claim may be in the store, nobody is told that it surely is not."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.queueing import Queueing
from lockfast.stores.etcd.steps import Step
from tests.etcd.harness import writes
from tests.etcd.test_losses import A, store_at
from tests.servers.etcd import EtcdCluster

B = c.Place("lock", "orders/43", "exclusive")


class Trouble:
    """What becomes of the transactions that this process sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost = 0
        """As many that write are carried out, and their answers lost; then nothing is reached."""
        self.writes_left = -1
        """After so many that write, nothing is reached; negative: everything is."""
        self._send = Gateway.txn
        monkeypatch.setattr(Gateway, "txn", lambda *args, **rest: self._txn(*args, **rest))

    async def _txn(self, gateway: Gateway, body: Any, until_s: float, **rest: Any) -> Any:
        if self.writes_left == 0:
            raise StoreUnavailableError("etcd", "cannot be reached", "look at the cable")
        answer = await self._send(gateway, body, until_s, **rest)
        if writes(body) and answer.get("succeeded"):
            self.writes_left -= self.writes_left > 0
            if self.lost:
                self.lost -= 1
                self.writes_left = 0
                raise OutcomeUnknownError("etcd", "the answer was lost")
        return answer

    def is_over(self) -> None:
        self.lost, self.writes_left = 0, -1


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


@pytest.fixture
def url(node: EtcdCluster) -> str:
    return node.url()


@pytest.fixture
def store(url: str) -> Iterator[EtcdStore]:
    store = store_at(url)
    yield store
    store.close()


def send(store: EtcdStore, command: c.Command) -> c.Reply:
    reply: c.Reply = run(store.caller_wire().send(command, 20_000))
    return reply


def enter(store: EtcdStore, n: int, place: c.Place, session: str = "session") -> c.Reply:
    opening = c.Open(session, 60_000, "owner")
    return send(store, c.Enter(session, n, (place,), open=opening))


def test_an_answer_is_lost_and_then_nothing_is_reached(store: EtcdStore, trouble: Trouble) -> None:
    """The claim is in the store; asked again with its number, it is the same claim."""
    assert isinstance(enter(store, 1, B), c.Granted)
    trouble.lost = 1
    with pytest.raises(OutcomeUnknownError, match="look at the cable"):
        enter(store, 2, A)
    with pytest.raises(StoreUnavailableError):  # of this request, nothing can have been done
        enter(store, 3, A)
    trouble.is_over()
    view = send(store, c.Inspect("lock", A.name))
    assert isinstance(view, c.ResourceView)
    granted = enter(store, 2, A)
    assert isinstance(granted, c.Granted)
    assert [(claim.n, claim.token) for claim in view.holders] == [(2, granted.token)]


def test_a_claim_stands_in_line_and_then_nothing_is_reached(
    url: str, store: EtcdStore, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those ahead have held for long, so it wants to see whether they live."""
    other = store_at(url)
    assert isinstance(enter(other, 1, A, "other"), c.Granted)
    assert isinstance(enter(store, 1, B), c.Granted)
    monkeypatch.setattr(Queueing, "is_long_held", lambda *_: True)
    queued = Queueing.reply

    def cut(queueing: Queueing, known: Any) -> Any:
        trouble.writes_left = 0
        return queued(queueing, known)

    monkeypatch.setattr(Queueing, "reply", cut)
    with pytest.raises(OutcomeUnknownError):
        enter(store, 2, A)
    trouble.is_over()
    monkeypatch.undo()
    assert isinstance(send(store, c.Look("session", 2)), c.Queued)
    other.close()


def test_a_session_is_ended_in_part_and_then_nothing_is_reached(
    store: EtcdStore, trouble: Trouble
) -> None:
    for n in range(1, 41):
        enter(store, n, c.Place("lock", f"orders/{n}", "exclusive"))
    trouble.writes_left = 2
    with pytest.raises(OutcomeUnknownError):
        send(store, c.RevokeSession("session", "admin", "it is time"))
    trouble.is_over()
    assert send(store, c.RevokeSession("session", "admin", "it is time")) == c.Done()
    assert send(store, c.RevokeSession("session", "admin", "it is time")) == c.Done(found=False)


def test_nothing_was_sent_so_nothing_is_in_doubt(store: EtcdStore, trouble: Trouble) -> None:
    assert isinstance(enter(store, 1, B), c.Granted)
    trouble.writes_left = 0
    with pytest.raises(StoreUnavailableError):
        enter(store, 2, A)


def test_a_session_has_no_more_claims_than_it_may(
    store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at the store before it is refused, since what is believed may be wrong."""
    monkeypatch.setattr(Step, "limits", Step.limits._replace(claims_max=3))
    places = [c.Place("lock", f"orders/{n}", "exclusive") for n in range(5)]
    for n in (1, 2, 3):
        assert isinstance(enter(store, n, places[n]), c.Granted)
    full = c.Refused(c.WHY_CLAIMS_FULL, "claims of the session", 4, 3)
    assert enter(store, 4, places[4]) == full
    assert isinstance(enter(store, 3, places[3]), c.Granted), "that one is in already"
    assert send(store, c.Leave("session", 2, (places[2],))) == c.Done()
    assert isinstance(enter(store, 5, places[4]), c.Granted)
    assert enter(store, 6, places[2]) == full
    store.shared.claims["session"] = 1000  # a wrong guess costs one look
    assert send(store, c.Leave("session", 5, (places[4],))) == c.Done()
    assert isinstance(enter(store, 7, places[4]), c.Granted)


class Late:
    """Keeps back the next transaction that writes, as if it were long under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        """What its sender hears instead."""
        self._kept: list[tuple[Gateway, Any]] = []
        self._send = Gateway.txn
        monkeypatch.setattr(Gateway, "txn", lambda *args, **rest: self._txn(*args, **rest))

    async def _txn(self, gateway: Gateway, body: Any, until_s: float, **rest: Any) -> Any:
        if self.error is not None and writes(body):
            self._kept.append((gateway, body))
            error, self.error = self.error, None
            raise error
        return await self._send(gateway, body, until_s, **rest)

    def arrives(self) -> None:
        ((gateway, body),) = self._kept
        run(self._send(gateway, body, monotonic() + 20))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    return Late(monkeypatch)


def nobody_is_there(store: EtcdStore) -> bool:
    view = send(store, c.Inspect("lock", A.name))
    claims = send(store, c.Claims("session"))
    assert isinstance(view, c.ResourceView)
    assert isinstance(claims, c.ClaimsReply)
    return not (view.holder_count or view.waiting_count) and len(claims.claims) == 1


def test_a_request_that_arrives_after_its_claim_was_left(store: EtcdStore, late: Late) -> None:
    """It was asked for again, granted and given back: there is nothing left to do."""
    assert isinstance(enter(store, 1, B), c.Granted)
    late.error = OutcomeUnknownError("etcd", "no answer")
    assert isinstance(enter(store, 2, A), c.Granted)
    assert send(store, c.Leave("session", 2, (A,))) == c.Done()
    late.arrives()
    assert nobody_is_there(store)


def test_a_request_that_arrives_while_its_claim_holds(store: EtcdStore, late: Late) -> None:
    """It does not stand in line behind itself."""
    assert isinstance(enter(store, 1, B), c.Granted)
    store.shared.met(A)  # so it is ready to wait
    late.error = OutcomeUnknownError("etcd", "no answer")
    assert isinstance(enter(store, 2, A), c.Granted)
    late.arrives()
    assert send(store, c.Leave("session", 2, (A,))) == c.Done()
    assert nobody_is_there(store)


def test_a_request_that_arrives_after_it_was_given_up(store: EtcdStore, late: Late) -> None:
    """Its sender was interrupted, and the keeper gives back whatever there may be."""
    assert isinstance(enter(store, 1, B), c.Granted)
    late.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        enter(store, 2, A)
    assert send(store, c.Leave("session", 2, (A,))) == c.Done(found=False)
    late.arrives()
    assert nobody_is_there(store)
