"""How long ago a claim was granted was the difference of two clients' wall clocks on etcd.

A holder counts its `max_hold` from the grant. If the clock of the client that handed the lock over
was five seconds ahead, the holder took its grant to be five seconds younger than it was, or even to
lie in the future, and relied on the lock for as long after the lease that bounds it had ended and
others had been granted the lock. Now that lease begins anew when the holder learns of its grant.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from tests.etcd.harness import address_of
from tests.etcd.model import ModelNetwork, ModelServer

A = (c.Place("lock", "a", "exclusive"),)
HOLD_MS = 10_000
TIMEOUT_MS = 5_000


class SkewedNetwork(ModelNetwork):
    """A client whose wall clock is wrong."""

    def __init__(self, server: ModelServer, ahead_s: int) -> None:
        super().__init__(server)
        self._ahead_us = ahead_s * 1_000_000

    def wall_us(self) -> int:
        return super().wall_us() + self._ahead_us

    def now_ms(self) -> int:
        return super().wall_us() // 1000


class Client:
    def __init__(self, server: ModelServer, session: str, ahead_s: int = 0) -> None:
        self.id = session
        store = EtcdStore(address_of("etcd://127.0.0.1:1"), SkewedNetwork(server, ahead_s))
        self._wire = store.caller_wire()

    def send(self, command: c.Command) -> c.Reply:
        return run(self._wire.send(command, TIMEOUT_MS))

    def enter(self, max_hold_ms: int = 0) -> c.Reply:
        opening = c.Open(self.id, 60_000, self.id)
        return self.send(c.Enter(self.id, 1, A, max_hold_ms=max_hold_ms, open=opening))


def pass_s(server: ModelServer, span_s: float) -> None:
    """Let time pass, and leases expire."""
    server.now_us += int(span_s * 1_000_000)
    gateway = server.gateway
    for lease in [one for one in gateway.state.leases if gateway.left_us(one) <= 0]:
        gateway.state.revoke(lease)


@pytest.mark.parametrize("ahead_s", [-5, 0, 5])
@pytest.mark.parametrize("by_renewal", [False, True])
def test_a_holder_may_rely_on_the_lock_for_as_long_as_it_believes(
    ahead_s: int, by_renewal: bool
) -> None:
    server = ModelServer()
    before, holder, other = (
        Client(server, "before", ahead_s), Client(server, "holder"), Client(server, "other")
    )  # fmt: skip
    assert isinstance(before.enter(), c.Granted)
    assert isinstance(holder.enter(HOLD_MS), c.Queued)
    before.send(c.Leave("before", 1))
    pass_s(server, 4)
    if by_renewal:
        renewed = holder.send(c.Renew("holder", 0, 0, 0, (1,)))
        assert isinstance(renewed, c.Renewed)
        granted: c.Reply = renewed.looks[0][1]
    else:
        granted = holder.send(c.Look("holder", 1))
    assert isinstance(granted, c.Granted)
    assert granted.for_ms == 0, "it may hold for its whole max_hold from now on"
    assert isinstance(other.enter(), c.Queued)
    pass_s(server, HOLD_MS / 1000 - 0.1)
    assert isinstance(other.send(c.Look("other", 1)), c.Queued)
    pass_s(server, 2)
    assert isinstance(other.send(c.Look("other", 1)), c.Granted)


def test_a_holder_that_learns_of_its_grant_too_late_does_not_hold() -> None:
    server = ModelServer()
    before, holder = Client(server, "before", 5), Client(server, "holder")
    assert isinstance(before.enter(), c.Granted)
    assert isinstance(holder.enter(HOLD_MS), c.Queued)
    before.send(c.Leave("before", 1))
    pass_s(server, HOLD_MS / 1000 + 2)
    assert isinstance(holder.send(c.Look("holder", 1)), c.Gone)
