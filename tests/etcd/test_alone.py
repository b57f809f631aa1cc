"""Claims without a row of their own: found again by everybody who has to find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.checksum import checksum_of
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import alone
from lockfast.stores.etcd.rows import alone_prefix, end_of
from tests.etcd.test_losses import revoke_lease, store_at
from tests.servers.etcd import EtcdCluster

A = c.Place("lock", "orders/42", "exclusive")
READ = c.Place("lock", "orders/42", "shared")


class World:
    """Two clients of one namespace, each with a session of its name."""

    def __init__(self, url: str) -> None:
        self.stores = {name: store_at(url) for name in ("one", "other")}

    def send(self, client: str, command: c.Command) -> c.Reply:
        reply: c.Reply = run(self.stores[client].caller_wire().send(command, 20_000))
        return reply

    def enter(self, client: str, n: int, place: c.Place) -> c.Reply:
        opening = c.Open(client, 60_000, f"owner of {client}")
        return self.send(client, c.Enter(client, n, (place,), open=opening))

    def hold(self, client: str, n: int, place: c.Place) -> int:
        granted = self.enter(client, n, place)
        assert isinstance(granted, c.Granted), granted
        return granted.token

    def rows(self, prefix: str) -> list[str]:
        """Keys that are stored, behind a prefix."""
        store = self.stores["other"]
        wire: Any = store.caller_wire()
        read = store.shared.keys.range(prefix, end_of(prefix), keys_only=True)
        answer = run(wire.gateway.txn({"success": [read]}, monotonic() + 20, repeatable=True))
        wire.close()
        found = store.shared.keys.found(answer["responses"][0]).kvs
        return [kv.key[len(prefix) :] for kv in found]

    def holders(self, place: c.Place) -> list[tuple[str, int]]:
        view = self.send("other", c.Inspect(*place[:2]))
        assert isinstance(view, c.ResourceView)
        return [(claim.session, claim.n) for claim in view.holders]

    def close(self) -> None:
        for store in self.stores.values():
            store.close()


@pytest.fixture
def world(node: EtcdCluster) -> Iterator[World]:
    world = World(node.url())
    yield world
    world.close()


def own_rows(world: World) -> list[str]:
    return world.rows(r.claims_prefix("one"))


def test_a_lock_taken_again_writes_one_row(world: World) -> None:
    """And the word of where it may be stays."""
    for n in (1, 2, 3):
        world.hold("one", n, A)
        assert own_rows(world) == []
        assert world.rows(alone_prefix("one")) == ["lock\x1forders/42"]
        assert world.send("one", c.Leave("one", n, (A,))) == c.Done()
    assert world.rows("r\x1f") == []


def test_a_session_that_dies_leaves_no_claim_behind(node: EtcdCluster, world: World) -> None:
    """Whoever opens a session ends it, and finds what it held."""
    places = [A._replace(name=f"orders/{i}") for i in range(30)]
    for n, place in enumerate(places, 1):
        world.hold("one", n, place)
    assert own_rows(world) == []
    revoke_lease(node, world.stores["one"], "one")
    world.hold("other", 1, A)
    assert world.rows("r\x1flock\x1f") == ["orders/42\x1f"]
    assert world.rows(alone_prefix("one")) == []


ENDS: list[tuple[str, Callable[[World], c.Reply]]] = [
    ("close", lambda world: world.send("one", c.Close("one"))),
    ("revoke", lambda world: world.send("other", c.RevokeSession("one", "admin", "enough"))),
    ("expel", lambda world: world.send("other", c.Expel("one", "it is dead", 0))),
]


@pytest.mark.parametrize("end", [end for _, end in ENDS], ids=[name for name, _ in ENDS])
def test_a_session_that_is_ended_leaves_no_claim_behind(
    world: World, end: Callable[[World], c.Reply]
) -> None:
    world.hold("one", 1, A)
    assert world.holders(A) == [("one", 1)]
    assert end(world) == c.Done()
    assert world.holders(A) == []
    assert world.rows(alone_prefix("one")) == []


def test_others_read_and_revoke_it(world: World) -> None:
    token = world.hold("one", 1, A)
    claims = world.send("other", c.Claims("one"))
    assert isinstance(claims, c.ClaimsReply)
    assert [(claim.n, claim.token) for claim in claims.claims] == [(1, token)]
    assert isinstance(world.send("other", c.Look("one", 1)), c.Granted)
    assert world.send("other", c.Revoke("one", 1, "admin", "enough")) == c.Done()
    assert isinstance(world.send("one", c.Leave("one", 1, (A,))), c.Gone)


def test_it_is_taken_away_while_its_holder_leaves(world: World) -> None:
    """The holder does not compare its row's revision, and is told all the same."""
    world.hold("one", 1, A)
    assert world.send("other", c.Revoke("one", 1, "admin", "enough")) == c.Done()
    world.hold("other", 1, A)
    assert isinstance(world.send("one", c.Leave("one", 1, (A,))), c.Gone)
    assert world.holders(A) == [("other", 1)]


def test_it_gets_a_row_of_its_own_when_others_join_it(world: World) -> None:
    world.hold("one", 1, READ)
    assert own_rows(world) == []
    world.hold("other", 1, READ)
    assert own_rows(world) == [f"{1:016x}"]
    assert world.send("one", c.Leave("one", 1, (READ,))) == c.Done()
    assert own_rows(world) == []
    assert world.holders(READ) == [("other", 1)]


def test_a_conversion_finds_it(world: World) -> None:
    world.hold("one", 1, A._replace(mode="update"))
    converted = world.send("one", c.Convert("one", 1, 1, "exclusive"))
    assert isinstance(converted, c.Granted)
    assert converted.mode == "exclusive"


def test_keep_alives_prove_it(world: World) -> None:
    """As long as it is there; and no longer."""
    token = world.hold("one", 1, A)
    renew = c.Renew("one", 1, checksum_of([(1, token)]), 1, ())
    for _ in range(2):
        renewed = world.send("one", renew)
        assert isinstance(renewed, c.Renewed)
        assert renewed.matches
    world.send("other", c.Revoke("one", 1, "admin", "enough"))
    renewed = world.send("one", renew)
    assert isinstance(renewed, c.Renewed)
    assert not renewed.matches


def test_keep_alives_see_that_its_row_is_gone(world: World) -> None:
    """Nobody has said so: the cluster was restored from a backup, for example."""
    token = world.hold("one", 1, A)
    store = world.stores["one"]
    wire: Any = store.caller_wire()
    delete = store.shared.keys.delete("r\x1flock\x1forders/42\x1f")
    run(wire.gateway.txn({"success": [delete]}, monotonic() + 20))
    renewed = world.send("one", c.Renew("one", 1, checksum_of([(1, token)]), 1, ()))
    assert isinstance(renewed, c.Renewed)
    assert not renewed.matches


def test_keep_alives_prove_it_though_others_wrote_its_row(world: World) -> None:
    token = world.hold("one", 1, A)
    assert isinstance(world.enter("other", 1, READ), c.Queued)
    renew = c.Renew("one", 1, checksum_of([(1, token)]), 1, ())
    for _ in range(2):
        renewed = world.send("one", renew)
        assert isinstance(renewed, c.Renewed)
        assert renewed.matches


def test_words_that_nobody_uses_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a keep-alive, and not those of claims that hold."""
    monkeypatch.setattr(alone, "WORDS_MAX", 4)
    monkeypatch.setattr(alone, "UNUSED_S", -1.0)
    places = [A._replace(name=f"orders/{i}") for i in range(6)]
    tokens = [world.hold("one", n, place) for n, place in enumerate(places, 1)]
    assert world.rows(alone_prefix("one")) == [f"lock\x1forders/{i}" for i in range(4)]
    assert own_rows(world) == [f"{n:016x}" for n in (5, 6)], "the others have rows"
    for n in (1, 2, 3):
        world.send("one", c.Leave("one", n, (places[n - 1],)))
    held = [(n, tokens[n - 1]) for n in (4, 5, 6)]
    renewed = world.send("one", c.Renew("one", 3, checksum_of(held), 4, ()))
    assert isinstance(renewed, c.Renewed)
    assert renewed.matches
    assert world.rows(alone_prefix("one")) == ["lock\x1forders/3"]
    world.hold("one", 7, places[0])
    assert "lock\x1forders/0" in world.rows(alone_prefix("one")), "it was left again"
