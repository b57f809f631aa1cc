"""Connecting: checks at the start, rotating passwords, and clients of other libraries."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import etcd3gw
import psycopg_pool
import pydantic
import pytest
import redis
import redis.asyncio
import sqlalchemy

import lockfast
import lockfast.aio
from lockfast import (
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    UnsupportedError,
)
from lockfast.stores.passwords import PasswordFile, plain
from lockfast.stores.ready_clients import settings_of
from lockfast.testing import ControlledStore
from tests.servers.etcd import EtcdCluster
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

NOWHERE = "redis://127.0.0.1:1"


def ping_async(client: lockfast.aio.Client) -> float:
    async def ping() -> float:
        async with client:
            return await client.ping()

    return asyncio.run(ping())


def test_ping_tells_how_long_a_reply_takes(lockfast_store: ControlledStore) -> None:
    client = lockfast_store.connect(connect_timeout=5)
    assert 0 <= client.ping() < 5
    lockfast_store.slow(0.05)
    assert client.ping() >= 0.05
    lockfast_store.up()
    assert ping_async(lockfast_store.connect_aio()) >= 0


def test_ping_raises_what_is_wrong(lockfast_store: ControlledStore) -> None:
    client, other = lockfast_store.connect(), lockfast_store.connect_aio()
    lockfast_store.down()
    with pytest.raises(StoreUnavailableError):
        client.ping()
    with pytest.raises(StoreUnavailableError):
        ping_async(other)


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_check_fails_at_the_start(connect: Callable[..., Any], tmp_path: Path) -> None:
    connect(NOWHERE)  # fails when it is first used
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1"):
        connect(NOWHERE, check=True, connect_timeout=0.1)
    client = connect(f"sqlite://{tmp_path}/locks.db", check=True)
    if isinstance(client, lockfast.Client):
        client.close()
    else:
        asyncio.run(client.close())


def test_a_check_in_asyncio_leaves_the_event_loop_to_others() -> None:
    """A silent server costs the caller its connect_timeout and delays no other task."""
    silent = socket.create_server(("127.0.0.1", 0))  # accepts connections and never answers
    url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    async def check() -> None:
        counting = asyncio.create_task(count())
        with pytest.raises(StoreError):
            _ = await lockfast.aio.connect(url, check=True, connect_timeout=0.5)
        with pytest.raises(StoreError):
            async with lockfast.aio.connect(url, check=True, connect_timeout=0.5):
                raise AssertionError("entered without a reply")
        counting.cancel()

    with silent:
        asyncio.run(check())
    assert turns > 5


def test_a_check_in_asyncio_returns_the_client(tmp_path: Path) -> None:
    async def use() -> None:
        client = await lockfast.aio.connect(f"sqlite://{tmp_path}/locks.db", check=True)
        assert await client is client
        async with client, client.lock("a") as lease:
            lease.check()
        async with lockfast.aio.connect(f"sqlite://{tmp_path}/locks.db", check=True) as other:
            await other.ping()
        assert await lockfast.aio.connect("memory://") is not None

    asyncio.run(use())


def test_a_check_that_is_never_awaited_is_no_silent_success() -> None:
    async def forget() -> None:
        _ = lockfast.aio.connect("memory://", check=True)

    with pytest.warns(RuntimeWarning, match="never awaited"):
        asyncio.run(forget())
        gc.collect()


# ── passwords ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(None, "--requirepass", "first", port=free_port()) as started:
        yield started


@pytest.fixture
def address(server: RedisServer) -> Iterator[str]:
    yield server.tcp_url()
    for password in ("first", "second"):
        try:
            server.run("CONFIG", "SET", "requirepass", "first", password=password)
        except Exception:  # the other password is correct
            continue


def rotate(server: RedisServer) -> None:
    """Change the password, and close every connection that used the old one."""
    server.run("CONFIG", "SET", "requirepass", "second", password="first")
    server.run("CLIENT", "KILL", "TYPE", "normal", password="second")
    server.run("CLIENT", "KILL", "TYPE", "pubsub", password="second")


def test_a_password_function_is_asked_for_each_connection(
    server: RedisServer, address: str
) -> None:
    current = ["first"]
    with lockfast.connect(address, password=lambda: current[0], check=True) as client:
        with client.lock("a") as lease:
            current[0] = "second"
            rotate(server)
            client.ping()
            lease.check()


def test_a_password_file_is_read_for_each_connection(
    server: RedisServer, address: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")

    async def work() -> None:
        url = f"{address}&password_file={file}"
        async with lockfast.aio.connect(url) as client, client.lock("a"):
            file.write_text("second\n")
            rotate(server)
            await client.ping()

    asyncio.run(work())


def test_the_nodes_of_a_majority_take_a_password_function(server: RedisServer) -> None:
    places = ",".join(f"127.0.0.1:{server.port}/{db}" for db in range(3))
    url = f"quorum+redis://{places}?namespace=passwords&silence=1"  # the server is new
    with (
        lockfast.connect(url, ttl=1, password=lambda: "first") as client,
        client.lock("a") as lease,
    ):
        assert lease.token > 0


def test_a_wrong_password_is_a_misconfiguration(address: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match="password"):
        lockfast.connect(address, password=lambda: "wrong", check=True)


def test_a_password_that_cannot_be_had_is_an_outage_and_not_shown(
    address: str, tmp_path: Path
) -> None:
    def broken() -> str:
        raise KeyError("hunter2")

    with pytest.raises(StoreUnavailableError, match="the password cannot be read") as caught:
        lockfast.connect(address, password=broken, check=True, connect_timeout=0.1)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreUnavailableError, match="missing"):
        plain(PasswordFile(str(tmp_path / "missing")), "redis://host")
    with pytest.raises(StoreUnavailableError, match="returned int"):
        plain(lambda: 5, "redis://host")  # type: ignore[arg-type, return-value]


def test_a_store_without_passwords_refuses_one() -> None:
    with pytest.raises(UnsupportedError, match="no password"):
        lockfast.connect("memory://", password=str)
    with pytest.raises(TypeError, match="function"):
        lockfast.connect("redis://host", password="secret")  # type: ignore[arg-type]


# ── ready clients ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_ready_redis_client_lends_its_settings(server: RedisServer, kind: type[Any]) -> None:
    ready = kind(port=server.port, password="first", db=1, decode_responses=True)
    with lockfast.connect(ready) as client, client.lock("a") as lease:
        assert lease.token > 0
    assert "first" not in client.url


def test_settings_of_redis_clients() -> None:
    tls = redis.Redis(
        "host", 1, 2, username="u", ssl=True, ssl_ca_certs="/ca", ssl_cert_reqs="none"
    )
    assert settings_of(tls).url == "rediss://u@host:1/2?ca=%2Fca&verify=off"
    assert settings_of(redis.Redis(unix_socket_path="/run/r.sock")).url == "unix:///run/r.sock"
    assert settings_of(redis.Redis("::1")).url == "redis://[::1]:6379/0"

    class Vault(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            return "u", "from the vault"

    found = settings_of(redis.Redis("host", credential_provider=Vault()))
    assert found.url == "redis://u@host:6379/0"
    assert found.password is not None
    assert found.password() == "from the vault"


def test_settings_of_postgresql_clients() -> None:
    pool = psycopg_pool.ConnectionPool(
        "host=h port=1 dbname=d user=u password=p@ss sslmode=require", open=False
    )
    found = settings_of(pool)
    assert found.url == "postgresql://u@h:1/d?sslmode=require"
    assert found.password is not None
    assert found.password() == "p@ss"
    engine = sqlalchemy.create_engine("postgresql+psycopg://u:p%40ss@h:1/d")
    assert settings_of(engine).url == "postgresql://u@h:1/d"
    socket = psycopg_pool.ConnectionPool("host=/run/pg dbname=d", open=False)
    assert settings_of(socket).url == "postgresql:///d?host=%2Frun%2Fpg"


def test_a_ready_etcd_client_lends_its_settings() -> None:
    with EtcdCluster(1) as node:
        ready = etcd3gw.Etcd3Client("127.0.0.1", node.members[0].port)
        with lockfast.connect(ready) as client, client.lock("a") as lease:
            assert lease.token > 0
    tls = etcd3gw.Etcd3Client(
        "::1", protocol="https", ca_cert="/ca", cert_cert="/cert", cert_key="/key"
    )
    assert settings_of(tls).url == "etcds://[::1]:2379?ca=%2Fca&cert=%2Fcert&key=%2Fkey"


def test_a_url_of_a_settings_object() -> None:
    class Settings(pydantic.BaseModel):
        locks: pydantic.AnyUrl
        cache: pydantic.RedisDsn

    settings = Settings.model_validate({"locks": "etcd://h:1", "cache": "redis://u:p@h:1/2"})
    assert settings_of(settings.locks).url == "etcd://h:1"
    with lockfast.connect(settings.cache) as client:
        assert client.url == "redis://u:***@h:1/2"
    with pytest.raises(UnsupportedError):
        lockfast.connect(settings)


def test_what_cannot_lend_settings_is_refused() -> None:
    sentinel = redis.Sentinel([("localhost", 1)]).master_for("main")  # type: ignore[no-untyped-call]
    with_function = psycopg_pool.ConnectionPool(lambda: "host=h", open=False)
    sqlite = sqlalchemy.create_engine("sqlite://")
    for client in (sentinel, with_function, sqlite, lockfast.connect("memory://")):
        with pytest.raises(UnsupportedError, match="pass a store URL"):
            lockfast.connect(client)
