"""The guard for data in Redis: check and write are one step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from lockfast.errors import InvalidNameError, StaleTokenError, UnsupportedError
from lockfast.guards.admission import TOKEN_MAX, Guard, InvalidTokenError
from lockfast.guards.redis import AsyncRedisGuard, RedisGuard
from tests.servers.redis import RedisServer

Connection = redis.Redis


@pytest.fixture
def client(server: RedisServer) -> Iterator[Connection]:
    with redis.Redis(
        unix_socket_path=str(server.socket), db=5, retry=Retry(NoBackoff(), 0)
    ) as made:
        made.flushdb()
        yield made


def test_an_older_token_is_refused_and_changes_nothing(client: Connection) -> None:
    guard = RedisGuard(client)
    guard.set("orders/42", 17, "state", "paid")
    with pytest.raises(StaleTokenError) as refused:
        guard.set("orders/42", 16, "state", "open")
    assert (refused.value.token, refused.value.floor) == (16, 17)
    assert client.get("state") == b"paid"
    assert guard.floor("orders/42") == 17


def test_every_kind_of_write_is_guarded(client: Connection) -> None:
    guard = RedisGuard(client)
    assert guard.hset("a", 5, "h", {"x": 1, "y": "z"}) == 2
    guard.set("a", 6, "s", b"\x00\xff", expire_ms=60_000)
    assert client.pttl("s") > 0
    assert guard.run("a", 7, "return {KEYS[1], ARGV[1], #KEYS, #ARGV}", ["k"], ["v"]) == [
        b"k",
        b"v",
        1,
        1,
    ]
    assert guard.run("a", 7, "return redis.call('GET', KEYS[1])", ["nothing"]) is None
    assert guard.delete("a", 8, "h", "s", "other") == 2
    for write in (
        lambda: guard.hset("a", 7, "h", {"x": 1}),
        lambda: guard.set("a", 7, "s", 1),
        lambda: guard.run("a", 7, "return redis.call('SET', KEYS[1], '1')", ["s"]),
        lambda: guard.delete("a", 7, "s"),
        lambda: guard.admit("a", 7),
    ):
        with pytest.raises(StaleTokenError):
            write()
    assert client.keys() == [b"lockfast:floors"]


def test_tokens_are_compared_exactly_up_to_53_bits(client: Connection) -> None:
    guard = RedisGuard(client)
    guard.admit("a", TOKEN_MAX - 1)
    guard.admit("a", TOKEN_MAX)
    assert guard.floor("a") == TOKEN_MAX
    with pytest.raises(StaleTokenError):
        guard.admit("a", TOKEN_MAX - 1)


def test_the_rules_of_all_guards(client: Connection) -> None:
    guard: Guard = RedisGuard(client)
    guard.admit("a", 5, shared=True)
    assert guard.floor("a") == 0
    guard.admit("a", 5)
    guard.admit("a", 5)
    with pytest.raises(StaleTokenError):
        guard.admit("a", 5, once=True)
    guard.admit("a", 6, once=True)
    with pytest.raises(StaleTokenError):
        guard.admit("a", 5, shared=True)
    guard.admit("b", 1)
    with pytest.raises(UnsupportedError):
        guard.admit("a", 7, shared=True, once=True)
    with pytest.raises(InvalidTokenError):
        guard.admit("a", 0)
    with pytest.raises(InvalidNameError):
        guard.admit("", 7)


def test_a_tree_guard_looks_above_and_beneath(client: Connection) -> None:
    guard = RedisGuard(client, tree=True)
    guard.set("w/eu/7", 10, "k", "v")
    with pytest.raises(StaleTokenError):
        guard.set("w", 9, "k", "v")
    guard.set("w/us", 3, "k", "v")
    guard.set("w", 11, "k", "v")
    with pytest.raises(StaleTokenError):
        guard.set("w/us", 10, "k", "v")


def test_a_script_that_fails_reaches_the_caller(client: Connection) -> None:
    guard = RedisGuard(client)
    client.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        guard.hset("a", 5, "text", {"x": 1})
    with pytest.raises(redis.ResponseError, match="no good"):
        guard.run("a", 5, "return redis.error_reply('no good')")


def test_of_racing_writers_the_newest_wins(server: RedisServer, client: Connection) -> None:
    """Eight threads write in any order: the newest token's value always remains."""

    def write(tokens: list[int]) -> None:
        with redis.Redis(unix_socket_path=str(server.socket), db=5) as own:
            guard = RedisGuard(own)
            for token in tokens:
                try:
                    guard.set("a", token, "value", token)
                except StaleTokenError:
                    pass

    threads = [threading.Thread(target=write, args=([*range(i, 400, 8)],)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("value") == b"400" or client.get("value") == b"399"
    assert RedisGuard(client).floor("a") == int(client.get("value") or 0)


def test_the_same_under_asyncio(server: RedisServer, client: Connection) -> None:
    async def story() -> None:
        async with redis.asyncio.Redis(unix_socket_path=str(server.socket), db=5) as connection:
            guard = AsyncRedisGuard(connection)
            await guard.set("a", 17, "s", "new")
            await guard.hset("a", 17, "h", {"x": 1})
            assert await guard.run("a", 17, "return redis.call('GET', KEYS[1])", ["s"]) == b"new"
            with pytest.raises(StaleTokenError):
                await guard.set("a", 16, "s", "old")
            with pytest.raises(StaleTokenError):
                await guard.admit("a", 16)
            assert await guard.delete("a", 18, "s", "h") == 2
            assert await guard.floor("a") == 18

    asyncio.run(story())


def test_a_client_of_the_other_kind_is_refused() -> None:
    """Of AsyncRedisGuard, the write was executed before the error was raised."""
    for guard, client in ((RedisGuard, redis.asyncio.Redis()), (AsyncRedisGuard, redis.Redis())):
        with pytest.raises(UnsupportedError, match="use the other guard"):
            guard(client)
