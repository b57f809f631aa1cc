"""rediss://: everything holds with TLS as without, and certificates are verified."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

import lockfast
import lockfast.aio
from lockfast.errors import StoreMisconfiguredError, StoreUnavailableError
from tests.redis.tls import TlsFront
from tests.servers.redis import RedisServer

PATIENCE_S = 30.0
_numbers = itertools.count(1)


class Papers:
    """A certificate authority and its certificates, as files."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        folder.mkdir()
        self.authority = trustme.CA()
        self.ca, self.client, self.client_key = (
            folder / name for name in ("ca.pem", "client.pem", "client.key")
        )
        self.authority.cert_pem.write_to_path(str(self.ca))
        issued = self.authority.issue_cert("worker@example.org")
        issued.cert_chain_pems[0].write_to_path(str(self.client))
        issued.private_key_pem.write_to_path(str(self.client_key))
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(host).configure_cert(self.context)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("tls") / "papers")


@pytest.fixture(scope="module")
def front(server: RedisServer, papers: Papers) -> Iterator[TlsFront]:
    with TlsFront(server.socket, papers.context) as started:
        yield started


def url_of(front: TlsFront, *, scheme: str = "rediss", **options: str | Path) -> str:
    options["namespace"] = f"tls-{next(_numbers)}"
    query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
    return f"{scheme}://127.0.0.1:{front.port}?{query}"


def hold(url: str) -> None:
    with lockfast.connect(url) as client, client.lock("orders/42"):
        pass


def hold_in_a_task(url: str) -> None:
    async def story() -> None:
        async with lockfast.aio.connect(url) as client, client.lock("orders/42"):
            pass

    asyncio.run(story())


both_faces = pytest.mark.parametrize("take", [hold, hold_in_a_task])
Take = Callable[[str], None]


def scripts_run(server: RedisServer) -> int:
    return server.calls().get("evalsha", 0)


@both_faces
@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_server_with_a_good_certificate_is_used(
    front: TlsFront, papers: Papers, take: Take, scheme: str
) -> None:
    take(url_of(front, scheme=scheme, ca=papers.ca))


def test_waiters_are_woken_through_tls(front: TlsFront, papers: Papers) -> None:
    """With a TTL so long that only a wake comes in time, and with many wakes at once."""
    url = url_of(front, ca=papers.ca)
    with lockfast.connect(url, ttl=3600) as holder, lockfast.connect(url, ttl=3600) as other:
        lease = holder.rwlock("orders/42").write().acquire()
        tokens: list[int] = []

        def read() -> None:
            with other.rwlock("orders/42").read() as got:
                tokens.append(got.token)

        readers = [threading.Thread(target=read) for _ in range(20)]
        for reader in readers:
            reader.start()
        while holder.inspect("orders/42").waiting_count < len(readers):
            pass
        lease.release()
        for reader in readers:
            reader.join(PATIENCE_S)
        assert len(tokens) == len(readers)
        assert min(tokens) > lease.token


@both_faces
def test_a_certificate_of_unknown_authority_is_refused_before_anything_is_done(
    server: RedisServer, front: TlsFront, tmp_path: Path, take: Take
) -> None:
    others = Papers(tmp_path / "others")
    before = scripts_run(server)
    for url in (url_of(front), url_of(front, ca=others.ca)):
        with pytest.raises(StoreMisconfiguredError, match="certificate was not accepted"):
            take(url)
    assert scripts_run(server) == before


@both_faces
def test_a_certificate_of_another_host_is_refused(
    server: RedisServer, tmp_path: Path, take: Take
) -> None:
    papers = Papers(tmp_path / "papers", host="redis.example.org")
    with TlsFront(server.socket, papers.context) as front:
        with pytest.raises(StoreMisconfiguredError, match="certificate was not accepted"):
            take(url_of(front, ca=papers.ca))
        take(url_of(front, verify="off"))


@both_faces
def test_a_server_may_want_a_certificate_of_ours(
    server: RedisServer, tmp_path: Path, take: Take
) -> None:
    papers = Papers(tmp_path / "papers")
    papers.context.verify_mode = ssl.CERT_REQUIRED
    papers.authority.configure_trust(papers.context)
    with TlsFront(server.socket, papers.context) as front:
        before = scripts_run(server)
        with pytest.raises(StoreMisconfiguredError, match=r"\?cert=FILE&key=FILE"):
            take(url_of(front, ca=papers.ca))
        assert scripts_run(server) == before
        take(url_of(front, ca=papers.ca, cert=papers.client, key=papers.client_key))


@both_faces
def test_a_client_without_tls_is_told_that_nobody_answers_it(front: TlsFront, take: Take) -> None:
    with pytest.raises(StoreUnavailableError):
        take(url_of(front, scheme="redis"))


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(papers: Papers) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(papers.client_key.read_bytes(), None)
    locked = papers.client_key.with_name("locked.key")
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(StoreMisconfiguredError, match="cannot load a certificate or key"):
        lockfast.connect(f"rediss://host?ca={papers.ca}&cert={papers.client}&key={locked}")
