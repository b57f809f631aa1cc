"""Steps larger than one transaction: carried through, also when whoever began them dies."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic
from traceback import walk_stack
from typing import Any, NamedTuple

import pytest

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.sockets import BlockingTransport
from tests.etcd.harness import spoken, writes
from tests.etcd.test_losses import revoke_lease, store_at
from tests.servers.etcd import EtcdCluster

MANY = 300
OPERATIONS_MAX = 128
"""etcd's own default of `--max-txn-ops`."""
HUB = "catalogue"


class DiedError(BaseException):
    """Of a client in the middle of its work: nothing of it runs after that."""


class Office:
    """Clients of one namespace, each a store of its own, and what their sessions do."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stores: dict[str, EtcdStore] = {}

    def store(self, client: str) -> EtcdStore:
        if client not in self._stores:
            self._stores[client] = store_at(self._url)
        return self._stores[client]

    def send(self, client: str, command: c.Command) -> c.Reply:
        reply: c.Reply = run(self.store(client).caller_wire().send(command, 60_000))
        return reply

    def enter(self, client: str, n: int, name: str, mode: str = "exclusive") -> c.Reply:
        opening = c.Open(client, 600_000, f"owner of {client}")
        return self.send(client, c.Enter(client, n, (c.Place("lock", name, mode),), open=opening))

    def leave(self, client: str, n: int, name: str) -> c.Reply:
        return self.send(client, c.Leave(client, n, (c.Place("lock", name, "exclusive"),)))

    def seen(self, name: str) -> tuple[int, int]:
        """How many hold and how many wait."""
        view = self.send("looker", c.Inspect("lock", name))
        assert isinstance(view, c.ResourceView), view
        return view.holder_count, view.waiting_count

    def locks(self) -> int:
        """How many locks there are, held or waited for."""
        found = self.send("looker", c.Listing("lock", limit=2 * MANY))
        assert isinstance(found, c.ListingReply), found
        return len(found.resources)

    def stored(self, session: str) -> int:
        """How many claims of a session are kept, whether it has ended or not."""
        store, prefix = self.store("looker"), r.claims_prefix(session)
        gateway = Gateway(store.shared.cluster, BlockingTransport(store.shared.cluster.address))
        keys = store.shared.keys
        read = keys.range(prefix, r.after_prefix(prefix), keys_only=True)
        try:
            answer = run(gateway.txn({"success": [read]}, monotonic() + 60, repeatable=True))
        finally:
            gateway.transport.close()
        return keys.found(answer["responses"][0]).count

    def tokens(self, session: str) -> list[int]:
        """Of those claims of a session that hold, in the order of their numbers."""
        found = self.send("looker", c.Claims(session))
        assert isinstance(found, c.ClaimsReply), found
        claims = sorted(found.claims, key=lambda claim: claim.n)
        return [claim.token for claim in claims if claim.token]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


@pytest.fixture
def office(node: EtcdCluster) -> Iterator[Office]:
    office = Office(node.url())
    yield office
    office.close()


class Telling:
    """Sees the transactions that are sent, and lets a client die after some that write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        """Operations of each transaction that was carried out."""
        self.depths: list[int] = []
        """How many calls lead to each of them."""
        self.lives = -1
        """After so many more that write, whoever sends dies; negative: nobody does."""
        self._send = Gateway.txn
        monkeypatch.setattr(Gateway, "txn", lambda *args, **rest: self._txn(*args, **rest))

    async def _txn(self, gateway: Gateway, body: Any, until_s: float, **rest: Any) -> Any:
        if self.lives == 0 and writes(body):
            self.lives = -1
            raise DiedError
        answer = await self._send(gateway, body, until_s, **rest)
        if writes(body) and answer.get("succeeded"):
            self.lives -= self.lives > 0
            self.sizes.append(len(spoken(body)["success"]))
            self.depths.append(sum(1 for _ in walk_stack(None)))
        return answer

    def dies_after(self, transactions: int) -> None:
        self.lives = transactions

    def forget(self) -> None:
        self.sizes.clear()
        self.depths.clear()

    def was_divided(self) -> None:
        """Several transactions, none of them larger than etcd allows."""
        assert len(self.sizes) > 1
        assert max(self.sizes) <= OPERATIONS_MAX
        grown = max(self.depths) - self.depths[0]
        assert grown < len(self.sizes), "each is called by the one before: ten thousand would fail"


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Telling:
    return Telling(monkeypatch)


def many_claims(office: Office, telling: Telling) -> None:
    """A session that holds many locks; somebody else waits for the last of them."""
    for n in range(1, MANY + 1):
        assert isinstance(office.enter("busy", n, f"orders/{n}"), c.Granted)
    assert isinstance(office.enter("next", 1, f"orders/{MANY}"), c.Queued)
    telling.forget()


def nothing_is_left_of(office: Office, session: str) -> None:
    """Its claims are gone, the one who waited holds, and it stays ended."""
    assert office.stored(session) == 0
    assert office.locks() == 1
    assert office.seen(f"orders/{MANY}") == (1, 0)
    assert isinstance(office.send("next", c.Look("next", 1)), c.Granted)
    assert isinstance(office.enter(session, MANY + 1, "another"), c.Ended)


def test_a_session_of_many_claims_is_closed(office: Office, telling: Telling) -> None:
    many_claims(office, telling)
    assert office.send("busy", c.Close("busy")) == c.Done()
    telling.was_divided()
    nothing_is_left_of(office, "busy")


def test_a_session_of_many_claims_is_revoked(office: Office, telling: Telling) -> None:
    many_claims(office, telling)
    office.send("admin", c.RevokeSession("busy", "admin", "it is time"))
    telling.was_divided()
    nothing_is_left_of(office, "busy")


def test_a_dead_session_of_many_claims_is_ended(
    node: EtcdCluster, office: Office, telling: Telling
) -> None:
    """By whoever meets it first."""
    many_claims(office, telling)
    revoke_lease(node, office.store("busy"), "busy")
    assert isinstance(office.enter("third", 1, "orders/1"), c.Granted)
    telling.was_divided()
    office.leave("third", 1, "orders/1")
    nothing_is_left_of(office, "busy")


@pytest.mark.parametrize("transactions", [1, 7])
def test_another_goes_on_where_the_one_who_ended_a_session_died(
    node: EtcdCluster, office: Office, telling: Telling, transactions: int
) -> None:
    many_claims(office, telling)
    revoke_lease(node, office.store("busy"), "busy")
    office.store("third")
    telling.dies_after(transactions)
    with pytest.raises(DiedError):
        office.enter("third", 1, f"orders/{MANY // 2}")
    assert 0 < office.stored("busy") < MANY, "it died in between"
    assert isinstance(office.enter("fourth", 1, f"orders/{MANY // 2}"), c.Granted)
    office.leave("fourth", 1, f"orders/{MANY // 2}")
    nothing_is_left_of(office, "busy")


class Ending(NamedTuple):
    """A way to end a session, and what its client is told of it."""

    command: c.Command
    told: c.Ended


ENDINGS = [
    Ending(c.Close("busy"), c.Ended("it was closed")),
    Ending(
        c.RevokeSession("busy", "admin", "it is time"),
        c.Ended("it was revoked: it is time", "admin"),
    ),
    Ending(c.Expel("busy", "its process is gone", 0), c.Ended("its process is gone")),
]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: type(ending.command).__name__)
@pytest.mark.parametrize("transactions", [1, 3])
def test_whoever_ends_a_session_dies_in_the_middle(
    office: Office, telling: Telling, ending: Ending, transactions: int
) -> None:
    """It is over from the first transaction on, and a waiter's keep-alive does the rest."""
    many_claims(office, telling)
    telling.dies_after(transactions)
    with pytest.raises(DiedError):
        office.send("admin", ending.command)
    assert 0 < office.stored("busy") < MANY, "it died in between"
    for command in (c.Renew("busy", MANY, 0, 1), c.Look("busy", MANY)):
        assert office.send("busy", command) == ending.told
    assert office.enter("busy", MANY + 1, "another") == ending.told
    assert isinstance(office.send("next", c.Look("next", 1)), c.Queued)
    renewed = office.send("next", c.Renew("next", 1, 0, 1, (1,)))
    assert isinstance(renewed, c.Renewed)
    assert isinstance(dict(renewed.looks)[1], c.Granted)
    nothing_is_left_of(office, "busy")
    assert office.enter("busy", MANY + 1, "another") == ending.told


def test_a_revocation_is_asked_for_again_where_it_stopped(office: Office, telling: Telling) -> None:
    many_claims(office, telling)
    telling.dies_after(2)
    revoke = c.RevokeSession("busy", "admin", "it is time")
    with pytest.raises(DiedError):
        office.send("admin", revoke)
    assert office.send("admin", revoke) == c.Done()
    nothing_is_left_of(office, "busy")


def many_readers(office: Office) -> None:
    """A writer, and readers that wait for it, of several sessions."""
    assert isinstance(office.enter("writer", 1, HUB), c.Granted)
    for number in range(MANY):
        reply = office.enter(f"reader-{number % 5}", number // 5 + 1, HUB, "shared")
        assert isinstance(reply, c.Queued)


def all_read(office: Office, others: int = 0) -> None:
    """All hold, with tokens that are unique and rise in the order they came."""
    assert office.seen(HUB) == (MANY + others, 0)
    by_session = [office.tokens(f"reader-{number}") for number in range(5)]
    in_order = [token for turn in zip(*by_session, strict=True) for token in turn]
    assert len(in_order) == MANY
    assert in_order == sorted(set(in_order))


def test_many_readers_are_granted_by_one_leave(office: Office, telling: Telling) -> None:
    many_readers(office)
    telling.forget()
    assert office.leave("writer", 1, HUB) == c.Done()
    telling.was_divided()
    all_read(office)


def test_a_keep_alive_goes_on_where_the_one_who_granted_died(
    office: Office, telling: Telling
) -> None:
    """Of a reader that still waits: it moves those before it as well."""
    many_readers(office)
    telling.dies_after(3)
    with pytest.raises(DiedError):
        office.leave("writer", 1, HUB)
    holding, waiting = office.seen(HUB)
    assert holding > 0
    assert waiting > 0
    last = MANY // 5
    office.send("reader-4", c.Renew("reader-4", last, 0, 1, (last,)))
    all_read(office)


def test_whoever_comes_next_goes_on_where_the_one_who_granted_died(
    office: Office, telling: Telling
) -> None:
    """It stands behind those who waited, and holds with them."""
    many_readers(office)
    telling.dies_after(3)
    with pytest.raises(DiedError):
        office.leave("writer", 1, HUB)
    assert office.seen(HUB)[1] > 0, "some still wait"
    office.enter("newcomer", 1, HUB, "shared")
    all_read(office, others=1)
    last = max(office.tokens(f"reader-{number}")[-1] for number in range(5))
    assert office.tokens("newcomer")[0] > last


def test_a_session_of_many_claims_ends_and_many_readers_follow(
    office: Office, telling: Telling
) -> None:
    """Both are too large at once: the claims that end, and those that are granted."""
    many_readers(office)
    for n in range(2, MANY // 5):
        assert isinstance(office.enter("writer", n, f"orders/{n}"), c.Granted)
    telling.forget()
    assert office.send("writer", c.Close("writer")) == c.Done()
    telling.was_divided()
    assert office.stored("writer") == 0
    all_read(office)
