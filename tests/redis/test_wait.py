"""`?wait=N`: a grant is returned once N replicas have it, and not before."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import lockfast
from lockfast import aio
from lockfast.conformance.contract import ApiContract
from lockfast.conformance.harness import Harness
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.ports import WAKE_MISSED
from lockfast.stores.redis.store import RedisStore
from tests.servers.sentinel import Replicated, wait_until

TTL = 6.0
NOT_GRANTED = (OutcomeUnknownError, StoreUnavailableError)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def replicated() -> Iterator[Replicated]:
    with Replicated() as started:
        yield started


def url_of(replicated: Replicated, wait: int = 2) -> str:
    port = replicated.primary.port
    return f"redis://127.0.0.1:{port}?namespace=wait-{next(_numbers)}&wait={wait}"


@contextmanager
def nothing_is_copied(replicated: Replicated) -> Iterator[None]:
    with ExitStack() as stack:
        for replica in replicated.replicas:
            stack.enter_context(replica.stopped())
        yield


class TestApi(ApiContract):
    """Through the API: the listener reports a hint instead of a grant, and the keeper asks."""

    @pytest.fixture
    def harness(self, replicated: Replicated) -> Harness:
        return Harness(
            url_of(replicated), "threads", RedisStore.capabilities, first_wake=WAKE_MISSED
        )


def test_each_grant_is_confirmed_once(replicated: Replicated) -> None:
    def waits() -> int:
        return replicated.primary.calls().get("wait", 0)

    with lockfast.connect(url_of(replicated), ttl=60) as client:
        before = waits()
        for _ in range(5):
            client.lock("orders/42").acquire().release()
        # The listener that has just connected may also read a claim.
        assert before + 5 <= waits() <= before + 7
    with lockfast.connect(url_of(replicated, wait=0), ttl=60) as client:
        before = waits()
        client.lock("orders/42").acquire().release()
        assert waits() == before


def test_a_grant_that_is_not_confirmed_is_given_back(replicated: Replicated) -> None:
    with lockfast.connect(url_of(replicated), ttl=60, connect_timeout=1.5) as client:
        client.lock("first").acquire().release()
        with nothing_is_copied(replicated):
            # There may be time for another attempt, but not to send it.
            with pytest.raises(NOT_GRANTED, match="of 2 replicas confirmed"):
                client.lock("orders/42").acquire()
            wait_until(lambda: client.inspect("orders/42").holder_count == 0, "the release")
        with client.lock("orders/42").acquire(timeout=60) as lease:
            assert lease.token


def test_a_hand_over_waits_for_the_replicas_and_renewals_go_on(replicated: Replicated) -> None:
    """The waiter's claim is granted by another's release; its own leases are still renewed."""
    url = url_of(replicated)
    with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as waiter:
        kept = waiter.lock("kept").acquire()
        held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        thread = threading.Thread(
            target=lambda: got.append(waiter.lock("orders/42").acquire(timeout=120))
        )
        thread.start()
        wait_until(lambda: holder.inspect("orders/42").waiting_count == 1, "the queue")
        with nothing_is_copied(replicated):
            held.release()
            wait_until(lambda: holder.inspect("orders/42").waiting_count == 0, "the grant")
            assert not kept.lost.wait(1.5 * TTL)
            assert not got
            kept.check()
        thread.join(60)
        assert got
        assert got[0].token > held.token
        got[0].release()
        kept.release()


def test_the_same_under_asyncio(replicated: Replicated) -> None:
    async def story() -> None:
        async with aio.connect(url_of(replicated), ttl=60, connect_timeout=1.5) as client:
            async with client.lock("orders/42") as lease:
                assert lease.token
            with nothing_is_copied(replicated), pytest.raises(OutcomeUnknownError):
                await client.lock("orders/42").acquire()
            async with await client.lock("orders/42").acquire(timeout=60) as lease:
                assert lease.token

    asyncio.run(story())
