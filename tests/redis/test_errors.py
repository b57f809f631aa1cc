"""Whatever the server or the network does, callers get typed errors that say what to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import main
from lockfast.core import commands as c
from lockfast.core.reasons import NOT_QUEUED
from lockfast.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.runtimes.threads import run
from lockfast.stores.redis.errors import translate
from lockfast.stores.redis.scripts import keys_of
from lockfast.stores.registry import open_store
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

LOCK = (c.Place("lock", "a", "exclusive"),)
OPEN = c.Open("us", 60_000, "owner")
ENTER = c.Enter("us", 1, LOCK, open=OPEN)


def send(url: str, *commands: c.Command, face: str = "threads", timeout_ms: int = 5000) -> c.Reply:
    """Send commands on one wire; return the reply to the last."""

    async def all_of_them() -> c.Reply:
        store = open_store(url, "asyncio" if face == "asyncio" else "threads")
        wire = store.caller_wire()
        try:
            for command in commands:
                reply = await wire.send(command, timeout_ms)
            return reply
        finally:
            store.close()

    return asyncio.run(all_of_them()) if face == "asyncio" else run(all_of_them())


both_faces = pytest.mark.parametrize("face", ["threads", "asyncio"])


@both_faces
def test_a_refused_connection(face: str) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        send(f"redis://127.0.0.1:{free_port()}", ENTER, face=face)


@both_faces
def test_a_socket_that_is_not_there(face: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        send(f"unix://{tmp_path}/none.sock", ENTER, face=face)


@both_faces
def test_scripts_that_are_gone_are_loaded_again(server: RedisServer, face: str) -> None:
    url = server.url()
    assert isinstance(send(url, ENTER, face=face), c.Granted)
    server.run("SCRIPT", "FLUSH")
    assert send(url, c.Leave("us", 1, LOCK), face=face) == c.Done(found=True)


@both_faces
def test_a_stopped_server_is_a_time_out_of_unknown_outcome(server: RedisServer, face: str) -> None:
    with RedisServer(server.binary) as own:

        async def story() -> None:
            store = open_store(own.url("x"), "asyncio" if face == "asyncio" else "threads")
            wire = store.caller_wire()
            await wire.send(ENTER, 5000)
            with own.stopped():
                with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
                    await wire.send(c.Leave("us", 1, LOCK), 200)
            # Whether or not the first one was executed, sending it again settles it.
            assert isinstance(await wire.send(c.Leave("us", 1, LOCK), 5000), c.Done)
            assert await wire.send(c.Look("us", 1), 5000) == c.Gone(NOT_QUEUED)
            store.close()

        if face == "asyncio":
            asyncio.run(story())
        else:
            run(story())


@both_faces
def test_a_replica_takes_no_claims(server: RedisServer, face: str) -> None:
    port = free_port()
    with RedisServer(server.binary, port=port), RedisServer(server.binary) as replica:
        replica.run("REPLICAOF", "127.0.0.1", port)
        with pytest.raises(StoreUnavailableError, match="replica"):
            send(replica.url(), ENTER, face=face)


@both_faces
def test_wrong_passwords_and_missing_ones(server: RedisServer, face: str) -> None:
    port = free_port()
    with RedisServer(server.binary, "--requirepass", "s3cret", port=port):
        at = f"127.0.0.1:{port}"
        assert isinstance(send(f"redis://:s3cret@{at}", ENTER, face=face), c.Granted)
        with pytest.raises(AccessDeniedError, match="password") as wrong:
            send(f"redis://default:guess@{at}", ENTER, face=face)
        assert "guess" not in str(wrong.value)
        with pytest.raises(AccessDeniedError, match="password"):
            send(f"redis://{at}", ENTER, face=face)


def test_a_password_that_was_not_asked_for(server: RedisServer) -> None:
    url = f"unix://user:pass@{server.socket}"
    with pytest.raises(StoreMisconfiguredError, match="refused the user or password"):
        send(url, ENTER)


def test_out_of_memory_refuses_new_claims_and_keeps_those_there_are(server: RedisServer) -> None:
    """Renewals and releases must continue to work: they are what frees memory."""
    with RedisServer(server.binary) as own:
        url = own.url("full")
        assert isinstance(send(url, ENTER), c.Granted)
        own.run("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreUnavailableError, match="out of memory"):
            send(url, c.Enter("us", 2, (c.Place("lock", "b", "exclusive"),)))
        renewed = send(url, c.Renew("us"))
        assert isinstance(renewed, c.Renewed)
        claims = send(url, c.Claims("us"))
        assert isinstance(claims, c.ClaimsReply)
        assert [claim.n for claim in claims.claims] == [1]
        assert send(url, c.Leave("us", 1, LOCK)) == c.Done()


@pytest.mark.parametrize("waiting", [1, 2])
def test_out_of_memory_a_lock_is_handed_over(server: RedisServer, waiting: int) -> None:
    with RedisServer(server.binary) as own:
        url = own.url("full")
        assert isinstance(send(url, ENTER), c.Granted)
        for i in range(waiting):
            opening = c.Open(f"s{i}", 60_000, "owner")
            assert isinstance(send(url, c.Enter(f"s{i}", 1, LOCK, open=opening)), c.Queued)
        own.run("CONFIG", "SET", "maxmemory", 1)
        assert send(url, c.Leave("us", 1, LOCK)) == c.Done()
        assert isinstance(send(url, c.Look("s0", 1)), c.Granted)


@both_faces
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_drop_locks_is_refused(
    server: RedisServer, face: str, policy: str
) -> None:
    with RedisServer(server.binary, "--maxmemory-policy", policy) as own:
        with pytest.raises(StoreMisconfiguredError, match=policy):
            send(own.url(), ENTER, face=face)
        assert own.resources() == []
        assert isinstance(send(own.url(eviction="allow"), ENTER, face=face), c.Granted)


RIGHTS = (
    "~{lockfast:*}:* +eval +evalsha +script|load +client|setname +info +subscribe +publish +time"
    " +exists +hget +hmget +hset +hdel +zadd +zrem +zrange +zrangebyscore +zrangebylex"
    " +zrevrangebylex +rpush +lrange +llen +ltrim +select +ping"
)
"""The table in docs/stores/redis.md is compared with this."""


def test_the_docs_list_these_rights() -> None:
    page = Path(__file__).parents[2] / "docs" / "stores" / "redis.md"
    (line,) = [one for one in page.read_text().splitlines() if "ACL SETUSER locks" in one]
    assert line.endswith(f"&{{lockfast:*}}:wake:* {RIGHTS}")


def test_doctor_is_content_with_the_rights_in_the_docs(server: RedisServer) -> None:
    with RedisServer(server.binary) as own:
        user = ("ACL", "SETUSER", "locks", "on", ">pw", "resetchannels", "&{lockfast:*}:wake:*")
        own.run(*user, *RIGHTS.split())
        assert main(["doctor", f"unix://locks:pw@{own.socket}?namespace=acl"]) == 0


def test_the_rights_in_the_docs_are_enough_and_all_needed(server: RedisServer) -> None:
    with RedisServer(server.binary) as own:
        own.run(
            "ACL",
            "SETUSER",
            "locks",
            "on",
            ">pw",
            "resetchannels",
            "&{lockfast:*}:wake:*",
            *RIGHTS.split(),
        )
        url = f"unix://locks:pw@{own.socket}?namespace=acl"
        with lockfast.connect(url) as client, client.all("a", "b"), client.lock("c"):
            assert len(client.list()) == 3
        for right in ("hset", "zadd", "rpush", "publish", "time", "zrevrangebylex"):
            own.run("ACL", "SETUSER", "locks", f"-{right}")
            before = own.run("HGETALL", keys_of("acl")[0].decode())
            with pytest.raises(StoreMisconfiguredError, match="does not allow this user"):
                send(url, ENTER)
            assert own.run("HGETALL", keys_of("acl")[0].decode()) == before
            own.run("ACL", "SETUSER", "locks", f"+{right}")


def test_other_data_under_our_keys(server: RedisServer) -> None:
    server.run("SET", keys_of("foreign")[0].decode(), "something else")
    with pytest.raises(StoreMisconfiguredError, match="other data under our keys"):
        send(server.url("foreign"), ENTER)


def test_another_schema(server: RedisServer) -> None:
    rows = keys_of("future")[0].decode()
    pack = "redis.call('HSET', KEYS[1], 'm', struct.pack('<dddBB', 0, 0, 0, 2, 1))"
    server.run("EVAL", pack, 1, rows)
    with pytest.raises(StoreMisconfiguredError, match="schema 2"):
        send(server.url("future"), ENTER)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailableError),
        ("READONLY You can't write against a read only replica.", StoreUnavailableError),
        (
            "ERR Error running script (call to f_1): @user_script:7: "
            "@user_script: 7: -READONLY You can't write against a read only replica.",
            StoreUnavailableError,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailableError),
        ("MISCONF Redis is configured to save RDB snapshots, but", StoreUnavailableError),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailableError),
        ("BUSY Redis is busy running a script.", StoreUnavailableError),
        ("ERR max number of clients reached", StoreUnavailableError),
        ("NOPERM this user has no permissions to run the 'eval'", AccessDeniedError),
        ("WRONGPASS invalid username-password pair", AccessDeniedError),
        ("NOAUTH Authentication required.", AccessDeniedError),
        ("MOVED 3999 127.0.0.1:6381", StoreMisconfiguredError),
        ("ERR DB index is out of range", StoreMisconfiguredError),
        ("ERR unknown command `EVALSHA`", StoreMisconfiguredError),
        ("ERR something nobody has seen", StoreError),
    ],
)
def test_error_replies_are_translated(message: str, kind: type[StoreError]) -> None:
    error = translate(message, "redis://host")
    assert type(error) is kind
    assert "redis://host" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:99999",
        "redis://host/database",
        "redis://host?namespace={x}",
        "redis://host?colour=red",
        "redis://host?ca=/x",
        "redis://host?eviction=perhaps",
        "unix://",
        "rediss://host?ca=/no/such/file",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError):
        lockfast.connect(url)


def test_a_scheme_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError):
        lockfast.connect("redis+carrier-pigeon://host")


def test_no_password_in_any_text() -> None:
    store = open_store("redis://user:s3cret@host:1/0", "threads")
    assert "s3cret" not in store.label
    assert "s3cret" not in repr(store.protocol.address)  # type: ignore[attr-defined]
