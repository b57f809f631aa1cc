"""The simulator's Redis answers like a real server, on random commands and scripts."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockfast.sim.network import Network
from lockfast.sim.redis.data import ReplyError, Status
from lockfast.sim.redis.server import RedisServer
from lockfast.sim.runtime import Host, Kernel
from tests.servers.redis import RedisServer as RedisProcess

SEEDS = range(3)
COMMANDS = 2000
SCRIPTS = 300

KEYS = (b"h", b"z", b"l", b"x")
FIELDS = (b"", b"a", b"b", b"b\x1f1", b"b\x1f2", b"c")
NUMBERS = (b"0", b"1", b"2", b"-1", b"-3", b"2.5", b"1700000000123", b"nan-sense")
BOUNDS = (b"[a", b"(a", b"[b\x1f", b"(b ", b"-", b"+", b"(c", b"wrong")
SCORES = (b"-inf", b"+inf", b"0", b"(0", b"1", b"(2", b"2.5", b"wrong")


class Server:
    """A connection to a real server, in plain RESP."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(10)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def execute(self, command: tuple[bytes, ...]) -> Any:
        packed = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in command)
        self._socket.sendall(b"*%d\r\n%b" % (len(command), packed))
        return self._reply()

    def _reply(self) -> Any:
        line = self._file.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return Status(rest)
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return self._file.read(int(rest) + 2)[:-2]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with RedisProcess() as process:
        server = Server(process.socket)
        yield server
        server.close()


@pytest.fixture
def model(server: Server) -> RedisServer:
    server.execute((b"FLUSHALL",))
    kernel = Kernel()
    return RedisServer(Host(kernel, "store"), Network(kernel))


def answer(model: RedisServer, command: tuple[bytes, ...]) -> Any:
    try:
        return model.execute(command)
    except ReplyError as error:
        return error


def same(found: Any, expected: Any) -> bool:
    """Compare errors only as errors: which of two mistakes is reported first does not matter."""
    return type(found) is type(expected) and (isinstance(found, ReplyError) or found == expected)


def random_command(rng: random.Random) -> tuple[bytes, ...]:
    key = rng.choice(KEYS) if rng.random() < 0.1 else b""
    field, number, bound = rng.choice(FIELDS), rng.choice(NUMBERS), rng.choice(BOUNDS)
    many = [part for _ in range(rng.randrange(1, 4)) for part in (rng.choice(FIELDS),)]
    limit = rng.choice(((), (), (b"LIMIT", b"0", b"2"), (b"LIMIT", b"1", b"-1"), (b"LIMIT",)))
    pairs = [part for one in many for part in (one, rng.choice(FIELDS))]
    scored = [part for one in many for part in (rng.choice(NUMBERS), one)]
    where = rng.choice(NUMBERS[:5]), rng.choice(NUMBERS[:5])
    h, z, lst = key or b"h", key or b"z", key or b"l"
    return rng.choice(
        (
            (b"HSET", h, *pairs),
            (b"HSET", h, field),
            (b"HGET", h, field),
            (b"HMGET", h, *many),
            (b"HDEL", h, *many),
            (b"HLEN", h),
            (b"ZADD", z, *scored),
            (b"ZADD", z, b"0", field, b"0", rng.choice(FIELDS)),
            (b"ZADD", z, b"XX", *scored),
            (b"ZREM", z, *many),
            (b"ZCARD", z),
            (b"ZSCORE", z, field),
            (b"ZRANGE", z, *where, *rng.choice(((), (b"WITHSCORES",)))),
            (b"ZRANGEBYSCORE", z, rng.choice(SCORES), rng.choice(SCORES), *limit),
            (b"ZRANGEBYSCORE", z, b"-inf", number, b"WITHSCORES", *limit),
            (b"RPUSH", lst, *many),
            (b"LLEN", lst),
            (b"LRANGE", lst, *where),
            (b"LTRIM", lst, *where),
            (b"EXISTS", h, z, lst, b"none"),
            (b"TYPE", rng.choice(KEYS)),
            (b"DEL", rng.choice(KEYS)),
            # All with one score, as these commands require.
            (b"ZADD", b"o", b"0", field),
            (b"ZREM", b"o", field),
            (b"ZRANGEBYLEX", b"o", bound, rng.choice(BOUNDS), *limit),
            (b"ZREVRANGEBYLEX", b"o", bound, rng.choice(BOUNDS), *limit),
        )
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_it_answers_as_the_server_does(server: Server, model: RedisServer, seed: int) -> None:
    rng = random.Random(f"redis {seed}")
    failed = 0
    for step in range(COMMANDS):
        command = random_command(rng)
        expected, found = server.execute(command), answer(model, command)
        assert same(found, expected), f"seed {seed}, {step}: {command}\n{found!r}\n{expected!r}"
        failed += isinstance(expected, ReplyError)
    assert COMMANDS // 50 < failed < COMMANDS // 2


def _literal(rng: random.Random, depth: int = 0) -> str:
    """A value in Lua, such as the scripts store."""
    way = rng.randrange(7 if depth < 3 else 4)
    if way == 0:
        return str(rng.choice((0, 1, 127, 128, 255, 256, 65535, 65536, 2**32, 2**52, -1, -32)))
    if way == 1:
        return str(rng.choice((-33, -129, -40000, -(2**31) - 1, 1.5, 0.1, 1700000000123.0)))
    if way == 2:
        return f"string.rep('x', {rng.choice((0, 1, 31, 32, 255, 256, 70000))})"
    if way == 3:
        return rng.choice(("true", "false", "'é\\0\\31'"))
    if way == 4:
        return "{" + ", ".join(_literal(rng, depth + 1) for _ in range(rng.randrange(20))) + "}"
    if way == 5:
        return "{}"
    return "{a = " + _literal(rng, depth + 1) + "}"


SNIPPETS = (
    "return cmsgpack.pack({0}, {1})",
    "return {{cmsgpack.unpack(cmsgpack.pack({0}, {1}))}}",
    "return struct.pack('<dddBB', 1, 1.5, 1700000000123456, 1, 2)",
    "return {{struct.unpack('<dI4c0H', struct.pack('<dI4c0H', 7, 3, 'abc', 513))}}",
    "return {{struct.unpack('<BH', 'xyzzy', 2)}}",
    "return redis.sha1hex('{2}')",
    "return {{1, 2.9, 'x', false, 4}}",
    "return {{1, nil, 3}}",
    "return redis.error_reply('MINE was wrong')",
    "return redis.status_reply('FINE')",
    "return {{redis.call('HGET', 'h', 'none'), redis.call('SET' and 'HSET', 'h', 'a', {3})}}",
    "redis.call('HSET', 'h', 'n', {3}) return redis.call('HGET', 'h', 'n')",
    "return redis.call('TYPE', 'h')",
    "return redis.call('TYPE', 'h').ok",
    "return redis.call('HSET', 'l')",
    "return #redis.call('HMGET', 'h', 'x', 'y')",
    "return string.format('%.0f', {3})",
    "return {{KEYS[1], ARGV[1], #ARGV, tostring(KEYS[2])}}",
    "error('broken')",
    "return nothing.at_all",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_its_lua_does_as_the_servers(server: Server, model: RedisServer, seed: int) -> None:
    rng = random.Random(f"lua {seed}")
    for step in range(SCRIPTS):
        number = rng.choice((0, 7, 2.5, 1e15, 2**52, 1700000000123456))
        parts = (_literal(rng), _literal(rng), "x" * rng.randrange(9), number)
        snippet = SNIPPETS[step % len(SNIPPETS)].format(*parts).encode()
        command = (b"EVAL", snippet, b"1", b"key", b"argument")
        expected, found = server.execute(command), answer(model, command)
        assert same(found, expected), f"seed {seed}: {snippet!r}\n{found!r}\n{expected!r}"


def test_a_script_has_to_be_loaded(server: Server, model: RedisServer) -> None:
    for side in (server.execute, lambda command: answer(model, command)):
        sha = side((b"SCRIPT", b"LOAD", b"return ARGV[1]"))
        assert side((b"EVALSHA", sha, b"0", b"x")) == b"x"
        missing = side((b"EVALSHA", b"0" * 40, b"0"))
        assert str(missing).startswith("NOSCRIPT")


def test_time_is_the_wall_clock_of_its_host(model: RedisServer) -> None:
    model.host.clock.jump(-5_000_000)
    seconds, microseconds = model.execute((b"TIME",))
    assert int(seconds) * 1_000_000 + int(microseconds) == model.host.clock.wall_us()
