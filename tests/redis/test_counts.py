"""The cost of operations, counted at the server."""

from __future__ import annotations

import asyncio
import threading

import pytest

import lockfast
import lockfast.aio
from lockfast.core import commands as c
from lockfast.flow.holding import Phase
from lockfast.runtimes.threads import run
from lockfast.stores.redis.scripts import keys_of, script_of
from tests.redis.watching import Monitor, calls_of, not_by_keepers, until_heard
from tests.servers.redis import RedisServer


@pytest.fixture(autouse=True)
def loaded_scripts(server: RedisServer) -> None:
    """Load the scripts into the server; otherwise each is sent once more."""
    with lockfast.connect(server.url()) as client:
        client.lock("a").acquire().release()


def test_acquire_and_release_are_one_command_each(server: RedisServer) -> None:
    with lockfast.connect(server.url()) as client:
        with until_heard(server):
            kept = client.lock("warm-up").acquire()
        with Monitor(server) as monitor:
            client.lock("orders/42").acquire().release()
            seen = monitor.by_callers()
        kept.release()
    assert [one.command for one in seen] == ["EVALSHA", "EVALSHA"]
    assert (calls_of(script_of(c.Enter), seen), calls_of(script_of(c.Leave), seen)) == (1, 1)


async def _pair(client: lockfast.aio.Client, name: str) -> None:
    lease = await client.lock(name).acquire()
    await lease.release()


def test_acquire_and_release_are_one_command_each_under_asyncio(server: RedisServer) -> None:
    async def story() -> list[str]:
        async with lockfast.aio.connect(server.url()) as client:
            with until_heard(server):
                kept = await client.lock("warm-up").acquire()
            with Monitor(server) as monitor:
                await _pair(client, "orders/42")
                seen = monitor.by_callers()
            await kept.release()
            return [one.command for one in seen]

    assert asyncio.run(story()) == ["EVALSHA", "EVALSHA"]


@pytest.mark.parametrize("names", [2, 40])
def test_several_at_once_are_one_command(server: RedisServer, names: int) -> None:
    with lockfast.connect(server.url()) as client:
        with until_heard(server):
            kept = client.lock("warm-up").acquire()
        with Monitor(server) as monitor:
            with client.all(*(f"accounts/{i}" for i in range(names))):
                pass
            seen = monitor.by_callers()
        kept.release()
    assert [one.command for one in seen] == ["EVALSHA", "EVALSHA"]


def knows_it_waits(client: lockfast.Client) -> bool:
    """Return True if a claim knows that it is queued; before that it would read its state."""
    return any(
        holding.phase is Phase.WAITING
        for session in client._core.sessions()
        for holding in session.holdings()
    )


def test_a_hand_over_is_one_command_and_the_wake(server: RedisServer) -> None:
    """The release grants and the wake carries the grant: the waiter sends nothing."""
    url = server.url()
    with lockfast.connect(url) as holder, lockfast.connect(url) as waiter:
        with until_heard(server, 2):
            kept = waiter.lock("warm-up").acquire()
            held = holder.lock("orders/42").acquire()
        got: list[lockfast.Lease] = []
        waiting = threading.Thread(target=lambda: got.append(waiter.lock("orders/42").acquire()))
        waiting.start()
        while not knows_it_waits(waiter):
            pass
        with Monitor(server) as monitor:
            held.release()
            waiting.join()
            seen = monitor.seen()
        assert got[0].token > held.token
        got[0].release()
        kept.release()
    by_clients = [one for one in seen if one.by != "lua" and one.command != "CLIENT"]
    assert [one.command for one in not_by_keepers(by_clients)] == ["EVALSHA"]
    assert [one.command for one in seen].count("PUBLISH") == 1


def test_two_hundred_waiters_send_nothing_but_keep_alives(server: RedisServer) -> None:
    """Five seconds with a TTL of three: every command seen is a keep-alive."""
    url = server.url()
    clients, waiters_each, watched_s, ttl = 8, 25, 5.0, 3.0

    async def story() -> None:
        async with asyncio.TaskGroup() as group, lockfast.aio.connect(url, ttl=ttl) as holder:
            others = [lockfast.aio.connect(url, ttl=ttl) for _ in range(clients)]
            with until_heard(server, clients + 1):
                lease = await holder.lock("orders/42").acquire()
                for other in others:
                    await _pair(other, f"warm-up of {id(other)}")
            waiters = [
                group.create_task(other.lock("orders/42").acquire())
                for other in others
                for _ in range(waiters_each)
            ]
            while (await holder.inspect("orders/42")).waiting_count < len(waiters):
                await asyncio.sleep(0)
            with Monitor(server) as monitor:
                still = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().call_later(watched_s, still.set_result, None)
                await still
                seen = monitor.by_clients()
            renewals = calls_of(script_of(c.Renew), seen)
            assert renewals == len(seen), set(seen)
            sessions = clients + 1
            # A renewal each third of a TTL, up to a tenth early, and a check when those ahead would
            # expire.
            assert sessions <= renewals <= 2.5 * sessions * watched_s / (ttl / 3)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
            for other in others:
                await other.close()
            await lease.release()

    asyncio.run(story())


def test_keep_alive_of_ten_thousand_locks_is_one_command(server: RedisServer) -> None:
    """One command proves them all: their count and checksum are stored with the session."""
    with lockfast.connect(server.url(), ttl=3600) as client:  # none of its own during the test
        leases = [client.lock(f"orders/{i}").acquire() for i in range(10_000)]
        session = leases[0]._holding.session
        assert session is not None
        proof = session.proof()
        renew = c.Renew(session.id, proof.count, proof.checksum, proof.lowest)
        with Monitor(server) as monitor:
            reply = run(client._core.wire.send(renew, 5000))
            seen = monitor.seen()
        assert reply == c.Renewed(matches=True)
        assert proof.count == len(leases)
        by_clients = [one for one in seen if one.by != "lua" and one.command != "CLIENT"]
        assert [one.command for one in by_clients] == ["EVALSHA"]
        assert len(seen) < 12  # however many locks it holds, it accesses a handful of rows


def test_an_unused_resource_has_no_key(server: RedisServer) -> None:
    """Everything is in the keys of the shard, and a lock makes none of them grow."""
    url = server.url("left-behind")
    rows, order, due, _ = (key.decode() for key in keys_of("left-behind"))
    with lockfast.connect(url) as client:
        client.lock("warm-up").acquire().release()
        fields = server.run("HLEN", rows)
        members = server.run("ZCARD", order)
        for i in range(50):
            with client.lock(f"orders/{i}"), client.rwlock(f"books/{i}").read():
                with client.all(f"a/{i}", f"b/{i}"), client.semaphore(f"api/{i}", limit=3):
                    assert server.run("HLEN", rows) > fields
        assert server.run("HLEN", rows) == fields
        assert server.run("ZCARD", order) == members
        assert server.run("ZCARD", due) == 1  # the session
        ours = [key for key in server.resources() if "left-behind" in key]
        assert ours == sorted([rows, order, due])  # and no log, because nobody watches
