"""Access: users and passwords, tokens that expire, TLS and client certificates."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

import lockfast
import lockfast.aio
from lockfast.stores.etcd import EtcdStore
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster


@pytest.fixture
def guarded() -> Iterator[EtcdCluster]:
    """A node that requires a password."""
    with EtcdCluster(1) as node:
        guard(node)
        yield node


def guard(node: EtcdCluster) -> None:
    root = {"name": "root", "password": "root:pass"}
    node.call("/v3/auth/user/add", root)
    node.call("/v3/auth/role/add", {"name": "root"})
    node.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
    node.call("/v3/auth/user/add", {"name": "poor", "password": "poor"})
    node.call("/v3/auth/enable", {})


def with_user(url: str, user: str) -> str:
    return url.replace("etcd://", f"etcd://{user}@")


def test_a_user_gets_in_and_a_token_that_is_no_longer_good_is_renewed(
    guarded: EtcdCluster,
) -> None:
    url = with_user(guarded.url(), "root:root%3Apass")
    with lockfast.connect(url, ttl=60) as client:
        first = client.lock("orders/42").acquire()
        store: Any = client._core.store
        assert isinstance(store, EtcdStore)
        store.context.token = "a-token-of-yesterday"
        first.release()
        assert store.context.token != "a-token-of-yesterday"
        again = client.lock("orders/42").acquire()
        assert again.token > first.token
        again.release()
        assert "pass" not in repr(client) + client._core.store.label


def test_tokens_expire_while_a_lock_is_held_and_waited_for() -> None:
    """etcd forgets a token that was not used for a second; keep-alives are less frequent."""
    with EtcdCluster(1, "--auth-token-ttl=1") as node:
        guard(node)
        url = with_user(node.url(), "root:root%3Apass")
        with lockfast.connect(url, ttl=12) as holder, lockfast.connect(url, ttl=12) as waiter:
            held = holder.lock("orders/42").acquire()
            got: list[int] = []

            def wait() -> None:
                with waiter.lock("orders/42") as lease:
                    got.append(lease.token)

            thread = threading.Thread(target=wait)
            thread.start()
            known = [cast(EtcdStore, client._core.store).context for client in (holder, waiter)]
            first = [context.token for context in known]
            until(
                lambda: all(a.token != b for a, b in zip(known, first, strict=True)),
                "both tokens were renewed",
            )
            held.check()
            held.release()
            thread.join(30)
            assert got
            assert got[0] > held.token


def test_a_waiter_behind_a_password_is_woken(guarded: EtcdCluster) -> None:
    url = with_user(guarded.url(), "root:root%3Apass")

    async def story() -> None:
        async with (
            lockfast.aio.connect(url, ttl=60) as one,
            lockfast.aio.connect(url, ttl=60) as two,
        ):
            held = await one.lock("orders/42").acquire()
            waiting = asyncio.ensure_future(two.lock("orders/42").acquire(timeout=15))
            while (await one.inspect("orders/42")).waiting_count < 1:
                await asyncio.sleep(0)
            await held.release()
            await (await waiting).release()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("root:wrong", "refused the user or password"),
        ("poor:poor", "denies this user"),
        ("", "requires a user"),
    ],
)
def test_who_may_not_is_told_why(guarded: EtcdCluster, user: str, said: str) -> None:
    url = with_user(guarded.url(), user) if user else guarded.url()
    with lockfast.connect(url) as client:
        with pytest.raises(lockfast.AccessDeniedError, match=said) as refused:
            client.lock("orders/42").acquire(timeout=5)
        assert "wrong" not in str(refused.value)


class Papers:
    """Certificates of a test authority."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        self.ca = directory / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._issue(authority, directory / "server", "127.0.0.1")
        self.client = self._issue(authority, directory / "client", "127.0.0.1")

    @staticmethod
    def _issue(authority: trustme.CA, directory: Path, name: str) -> tuple[Path, Path]:
        directory.mkdir()
        issued = authority.issue_cert(name)
        cert, key = directory / "cert.pem", directory / "key.pem"
        issued.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return cert, key


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def secured(papers: Papers) -> Iterator[EtcdCluster]:
    """A node that requires TLS and a client certificate it knows."""
    cert, key = papers.server
    flags = (f"--cert-file={cert}", f"--key-file={key}", f"--trusted-ca-file={papers.ca}")
    with EtcdCluster(1, *flags, "--client-cert-auth") as node:
        yield node


def secured_url(node: EtcdCluster, **options: object) -> str:
    query = "".join(f"&{name}={value}" for name, value in options.items())
    return node.url().replace("etcd://", "etcds://") + query


def test_tls_with_a_client_certificate(secured: EtcdCluster, papers: Papers) -> None:
    cert, key = papers.client
    url = secured_url(secured, ca=papers.ca, cert=cert, key=key)
    with lockfast.connect(url, ttl=60) as client, lockfast.connect(url, ttl=60) as other:
        held = client.lock("orders/42").acquire(timeout=10)
        assert other.lock("orders/42").try_acquire() is None
        held.release()

    async def story() -> int:
        async with lockfast.aio.connect(url) as client, client.lock("orders/42") as lease:
            return lease.token

    assert asyncio.run(story()) > held.token


def test_without_our_certificate_or_with_an_unknown_authority(
    secured: EtcdCluster, papers: Papers
) -> None:
    for options, said in (
        ({"ca": papers.ca}, "did not accept our certificate"),
        ({}, "its certificate is not accepted"),
    ):
        with lockfast.connect(secured_url(secured, **options)) as client:
            with pytest.raises(lockfast.StoreMisconfiguredError, match=said):
                client.lock("orders/42").acquire(timeout=5)
