"""Anyone who may PUBLISH on a Redis server could make a waiter believe in a forged grant.

The messages named the granted claim and its token, and were trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from time import monotonic

import pytest

import lockfast
from lockfast.flow.holding import Phase
from lockfast.stores.redis.scripts import channel_of
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0
FAR_TOKEN = 9007199254740990


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def waiting_claim(client: lockfast.Client) -> tuple[str, int]:
    """Return session and number of the waiting claim, once it waits."""
    until_s = monotonic() + PATIENCE_S
    while monotonic() < until_s:
        for session in client._core.sessions():
            for holding in session.holdings():
                if holding.phase is Phase.WAITING:
                    return session.id, holding.n
    raise AssertionError("no claim waits")


def test_a_grant_published_by_a_stranger_is_not_believed(server: RedisServer) -> None:
    url = server.url("forged")
    with lockfast.connect(url, ttl=3600) as holder, lockfast.connect(url, ttl=3600) as waiter:
        held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        thread.start()
        session, n = waiting_claim(waiter)
        channel = channel_of("forged", session)
        while server.run("PUBSUB", "NUMSUB", channel)[1] == 0:
            pass
        said = f"{session} {n} granted {FAR_TOKEN}"
        for forged in (said, f"{said} {'0' * 40}", f"{said} ", f"{session} {n} wanted 0", "\xff"):
            assert server.run("PUBLISH", channel, forged) == 1
        held.release()  # only now the waiter is granted the lock
        thread.join(PATIENCE_S)
        assert got[0].token < FAR_TOKEN
        assert [claim.token for claim in waiter.inspect("orders/42").holders] == [got[0].token]
        got[0].release()


def test_a_message_of_the_store_changed_on_its_way_is_not_believed() -> None:
    """A client that may also subscribe sees real messages, but cannot forge others from them."""
    from lockfast.core.commands import Wake
    from lockfast.stores.redis.session_wakes import SessionWakes

    delivered: list[Wake] = []
    wakes = SessionWakes("s", delivered.append)

    def hear(said: str, code: str) -> list[Wake]:
        return wakes.hear_all([["message", "channel", f"{said} {code}"]])

    true = "s 1 granted 17"
    code = wakes._code(true)
    for said in ("s 1 granted 18", "s 2 granted 17", "s 1 granted 17 ", "other 1 granted 17"):
        assert hear(said, code) == []
    assert hear(f"s 1 granted {2**53 + 1}", wakes._code(f"s 1 granted {2**53 + 1}")) == []
    assert delivered == []
    hear(true, code)
    assert delivered == [Wake(wakes.inbox, "s", 1, "granted", 17)]
