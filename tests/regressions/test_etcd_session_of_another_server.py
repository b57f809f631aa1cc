"""A lock server that did not open a session serves it like the one that did (etcd).

After a restart, or behind a balancer, a server got commands of sessions that another had opened. It
answered a keep-alive without renewing the session's lease, so the lock was granted to another while
the holder believed in it. It answered a release without releasing, said that the claims of the
session were gone, and entered a claim twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lockfast.core import commands as c
from lockfast.core.checksum import checksum_of
from lockfast.errors import StoreUnavailableError
from lockfast.stores.etcd.execution import Execution
from tests.etcd.lines import PLACES, Client
from tests.etcd.model import ModelServer

TTL_US = 60_000_000


class Server(Client):
    """A lock server's store, with a listener for the session, which it may not have opened."""

    def __init__(self, model: ModelServer, session: str = "s") -> None:
        self.model = model
        super().__init__(model, session)

    def send(self, command: c.Command) -> c.Reply:
        opens = isinstance(command, c.Open) and self.model.gateway.state.mvcc.revision > 1
        return c.Done() if opens else super().send(command)

    def enter_again(self, enter: c.Enter) -> c.Reply:
        """Enter as a client does, which retries if the session has moved."""
        with contextlib.suppress(StoreUnavailableError):
            return self.send(enter)
        return self.send(enter)

    def renew(self, **tokens: int) -> c.Reply:
        pairs = [(int(n[1:]), token) for n, token in tokens.items()]
        return self.send(c.Renew(self.session, len(pairs), checksum_of(pairs), 1))


@pytest.fixture
def model() -> ModelServer:
    return ModelServer()


def test_a_keep_alive_renews_the_lease(model: ModelServer) -> None:
    one, other = Server(model), Server(model)
    granted = one.enter(1)
    assert isinstance(granted, c.Granted)
    for _ in range(3):
        model.now_us += TTL_US // 2
        assert other.renew(n1=granted.token) == c.Renewed(True)
        assert one.renew(n1=granted.token) == c.Renewed(True)
    (lease,) = model.gateway.state.leases.values()
    assert lease.expires_us > model.now_us + TTL_US // 2


def test_a_release_releases(model: ModelServer) -> None:
    one, other = Server(model), Server(model)
    assert isinstance(one.enter(1), c.Granted)
    assert isinstance(other.send(c.Look("s", 1)), c.Granted)
    other.leave(1)
    view = one.send(c.Inspect("lock", "orders/42"))
    assert isinstance(view, c.ResourceView)
    assert view.holders == ()


def test_an_enter_that_is_sent_again_is_one_claim(model: ModelServer) -> None:
    one, other = Server(model), Server(model)
    granted = one.enter(1)
    assert isinstance(granted, c.Granted)
    assert other.enter(1) == granted
    assert other.renew(n1=granted.token) == c.Renewed(True)


def test_claims_of_two_homes_have_keys_of_their_own(model: ModelServer) -> None:
    """Permits that shared a key would count as one."""
    permit = c.Place("semaphore", "api", "permit", 1, 3)
    servers = [Server(model), Server(model)]
    for n in range(1, 4):
        enter = c.Enter("s", n, (permit,))
        assert isinstance(servers[n % 2].enter_again(enter), c.Granted)
    one_more = c.Enter("s", 4, (permit,), queue=False)
    assert isinstance(servers[0].enter_again(one_more), c.Busy)
    claims = servers[1].send(c.Claims("s"))
    assert isinstance(claims, c.ClaimsReply)
    assert [claim.n for claim in claims.claims] == [1, 2, 3]


def test_an_enter_that_the_former_home_sends_late_is_refused(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has given up and released the claim through the new home."""
    one, other = Server(model), Server(model)
    in_turn = Execution.in_turn
    assert isinstance(one.enter(1), c.Granted)
    one.leave(1)

    @asynccontextmanager
    async def move_meanwhile(self: Execution, prefix: str) -> AsyncIterator[None]:
        monkeypatch.undo()
        assert other.renew() == c.Renewed(True)
        other.send(c.Leave("s", 2, PLACES))
        async with in_turn(self, prefix):
            yield

    monkeypatch.setattr(Execution, "in_turn", move_meanwhile)
    with pytest.raises(StoreUnavailableError, match="home of the session"):
        one.enter(2)
    assert other.renew() == c.Renewed(True)


def test_a_claim_that_was_entered_late_is_found_by_the_next_keep_alive(model: ModelServer) -> None:
    """The client does not count it, so it lists its claims and releases this one."""
    one, other = Server(model), Server(model)
    assert other.renew() == c.Renewed(True)
    assert isinstance(one.enter_again(c.Enter("s", 1, PLACES)), c.Granted)
    assert one.renew() == c.Renewed(False)
    assert other.renew() == c.Renewed(False)
