"""A primary that is found through sentinels, and again after a failover."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from time import monotonic

import pytest

import lockfast
from lockfast import aio
from lockfast.cli import main
from lockfast.conformance.contract import WireContract
from lockfast.conformance.harness import Harness
from lockfast.core import commands as c
from lockfast.errors import LeaseLostError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.ports import WAKE_MISSED
from lockfast.runtimes.threads import run
from lockfast.stores.redis.address import parse
from lockfast.stores.redis.connection import Connection
from lockfast.stores.redis.store import RedisStore
from lockfast.stores.registry import open_store, parse_url
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SERVICE, Watched

TTL = 20.0
_numbers = itertools.count(1)


def fresh() -> str:
    return f"sentinel-{next(_numbers)}"


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A group that no test breaks."""
    with Watched() as started:
        yield started


class TestWire(WireContract):
    @pytest.fixture(params=["threads", "asyncio"])
    def harness(self, request: pytest.FixtureRequest, watched: Watched) -> Harness:
        return Harness(
            watched.url(fresh()), request.param, RedisStore.capabilities, first_wake=WAKE_MISSED
        )


def test_a_lease_that_was_copied_survives_a_failover() -> None:
    """The new primary has session and claim: the holder does not notice."""
    with Watched() as watched:
        url = watched.url(fresh())
        with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
            held = holder.lock("orders/42").acquire()
            watched.primary.run("WAIT", 2, 5000)
            watched.fail_over()
            with pytest.raises(lockfast.AcquireTimeoutError):
                other.lock("orders/42").acquire(timeout=1)
            held.check()
            held.release()
            with other.lock("orders/42").acquire(timeout=TTL) as lease:
                assert lease.token > held.token


def test_a_grant_that_no_replica_has_is_told_and_fenced() -> None:
    """The replicas are stopped while it is granted, and one of them is promoted."""
    with Watched() as watched:
        url = watched.url(fresh())
        with lockfast.connect(url, ttl=TTL) as holder, lockfast.connect(url, ttl=TTL) as other:
            holder.lock("first").acquire().release()
            one, two = watched.replicas
            with one.stopped(), two.stopped():
                # Otherwise the grant would wait for them in their socket buffers.
                watched.primary.run("CLIENT", "KILL", "TYPE", "replica")
                held = holder.lock("orders/42").acquire()
                watched.primary.kill()
            watched.fail_over()
            with other.lock("orders/42").acquire(timeout=TTL) as lease:
                assert lease.token > held.token
            assert held.lost.wait(TTL)
            with pytest.raises(LeaseLostError):
                held.check()
            holder.lock("orders/42").acquire(timeout=TTL).release()


def scripting(server: RedisServer) -> set[str]:
    """Return the ids of connections whose last command was a script."""
    lines = str(server.run("CLIENT", "LIST")).splitlines()
    return {line.split()[0] for line in lines if "cmd=eval" in line}


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_a_connection_to_a_former_primary_is_not_used_again(watched: Watched, face: str) -> None:
    """It becomes a replica briefly, unnoticed by the sentinels: the failed command must be retried
    on a new connection, not on the same one."""
    url = watched.url(fresh())
    store = open_store(url, face)  # type: ignore[arg-type]
    primary, replica = watched.primary, watched.replicas[0]

    async def story() -> None:
        wire = store.caller_wire()
        await wire.send(c.Open("s", 60_000, "s"), 5000)
        before = scripting(primary)
        primary.run("REPLICAOF", "127.0.0.1", replica.port)
        try:
            with pytest.raises(StoreUnavailableError, match="replica"):
                await wire.send(c.Open("t", 60_000, "t"), 5000)
        finally:
            primary.run("REPLICAOF", "NO", "ONE")
        await wire.send(c.Open("t", 60_000, "t"), 5000)
        assert scripting(primary).isdisjoint(before)
        wire.close()

    asyncio.run(story()) if face == "asyncio" else run(story())
    store.close()


def test_the_same_under_asyncio() -> None:
    async def story(watched: Watched) -> None:
        async with aio.connect(watched.url(fresh()), ttl=TTL) as client:
            held = await client.lock("orders/42").acquire()
            await asyncio.to_thread(watched.primary.run, "WAIT", 2, 5000)
            await asyncio.to_thread(watched.fail_over)
            async with await client.lock("orders/43").acquire(timeout=TTL) as lease:
                assert lease.token > held.token
            held.check()
            await held.release()

    with Watched() as watched:
        asyncio.run(story(watched))


def test_a_server_that_is_no_primary_is_refused(watched: Watched) -> None:
    """Like one that a sentinel names slightly too long: every connection asks for its role."""
    address = parse(parse_url(watched.url(fresh())))
    for replica in watched.replicas:
        former = address._replace(host="127.0.0.1", port=replica.port, sentinels=())
        for checked in (True, False):
            with pytest.raises(StoreUnavailableError, match="no longer the primary"):
                Connection(former, monotonic() + 5, checked=checked)


def test_a_majority_of_sentinels_must_answer() -> None:
    """A sentinel that is cut off may name a primary that the others have replaced."""
    with Watched() as watched:
        url = watched.url(fresh())
        watched.sentinels[0].kill()
        with lockfast.connect(url, ttl=TTL) as client:
            held = client.lock("orders/42").acquire()
            watched.sentinels[1].kill()
            with lockfast.connect(url, ttl=TTL, connect_timeout=1) as late:
                with pytest.raises(StoreUnavailableError, match="1 of 3 sentinels"):
                    late.lock("orders/42").acquire(timeout=5)
            held.check()  # existing connections keep working
            held.release()


def test_primary_and_sentinels_have_credentials_of_their_own() -> None:
    with Watched(1, password="outer", sentinel_password="inner") as watched:
        url = watched.url(fresh(), ":outer@", sentinel_password="inner")
        with lockfast.connect(url) as client, client.lock("a") as lease:
            assert lease.token
        for wrong in (
            watched.url(fresh(), ":outer@", sentinel_password="wrong"),
            watched.url(fresh(), ":wrong@", sentinel_password="inner"),
        ):
            with lockfast.connect(wrong, connect_timeout=1) as client:
                with pytest.raises(StoreMisconfiguredError) as refused:
                    client.lock("a").acquire()
            for secret in ("outer", "inner", "wrong"):
                assert secret not in str(refused.value)


def test_an_unknown_service_is_told(watched: Watched) -> None:
    url = watched.url(fresh()).replace(f"/{SERVICE}?", "/elsewhere?")
    with lockfast.connect(url) as client:
        with pytest.raises(StoreMisconfiguredError, match="elsewhere"):
            client.lock("a").acquire()


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://a,b,c",
        "redis+sentinel://a,b,c/",
        "redis+sentinel://a,a/locks",
        "redis+sentinel://a:0/locks",
        "redis+sentinel://a/locks/x",
        "redis+sentinel://a/locks?ca=file",
        "redis://a?sentinel_password=x",
        "redis://a?wait=many",
        "redis://a?wait=-1",
    ],
)
def test_a_malformed_url_is_refused_before_any_request(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError):
        lockfast.connect(url)


def test_doctor_finds_the_primary(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", watched.url(fresh())]) == 0
    said = capsys.readouterr().out
    assert "2 (" in said
    assert main(["doctor", watched.url(fresh(), wait=1)]) == 0
    assert "wait=1" in capsys.readouterr().out
    assert main(["doctor", watched.url(fresh(), wait=3)]) == 2
