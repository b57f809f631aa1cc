"""A client that cannot open a ZooKeeper session reports why.

kazoo repeats failed attempts forever and only logs the reason, so every mistake in a URL was
reported as "did not answer in time", below a screen of kazoo's warnings. After a refused login, its
connection thread had ended, and the client never recovered.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

import lockfast
import lockfast.aio
from lockfast.errors import (
    AccessDeniedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from tests.servers.ports import free_port
from tests.zookeeper.access import PASSWORD, Guarded, guarded_server

TIMEOUT_S = 3.0


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_server(tmp_path_factory.mktemp("access")) as started:
        yield started


def failure(url: str) -> StoreError:
    with (
        lockfast.connect(url, connect_timeout=TIMEOUT_S) as client,
        pytest.raises(StoreError) as raised,
    ):
        client.lock("orders/42").try_acquire()
    assert isinstance(raised.value, StoreError)
    return raised.value


def test_a_refused_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kazoo.client")
    error = failure(f"zookeeper://127.0.0.1:{free_port()}")
    assert isinstance(error, StoreUnavailableError)
    assert "cannot be reached (Connection refused); check the address" in str(error)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not [record for record in warnings if record.name.startswith("kazoo")]


def test_a_host_without_an_address() -> None:
    error = failure("zookeeper://unknown.invalid")
    assert isinstance(error, StoreUnavailableError)
    assert "check the address" in str(error)


def test_a_refused_connection_under_asyncio() -> None:
    async def main() -> None:
        url = f"zookeeper://127.0.0.1:{free_port()}"
        async with lockfast.aio.connect(url, connect_timeout=TIMEOUT_S) as client:
            with pytest.raises(StoreUnavailableError, match="Connection refused"):
                await client.lock("orders/42").try_acquire()

    asyncio.run(main())


def test_a_certificate_that_is_not_accepted(guarded: Guarded, tmp_path: Path) -> None:
    other = tmp_path / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    here = f"zookeepers://127.0.0.1:{guarded.tls_port}?ca="
    with lockfast.connect(f"{here}{guarded.ca}&cert={guarded.cert}") as client:
        client.lock("orders/42").acquire().release()
    error = failure(f"{here}{other}&cert={guarded.cert}")
    assert isinstance(error, StoreMisconfiguredError)
    assert "its certificate is not accepted" in str(error)


def test_tls_at_a_port_without_it(guarded: Guarded) -> None:
    url = f"zookeepers://{guarded.ensemble.hosts()}?ca={guarded.ca}"
    assert "check whether this port uses TLS" in str(failure(url))


def test_a_refused_login(guarded: Guarded, tmp_path: Path) -> None:
    """The client reads the password again for its next attempt."""
    password = tmp_path / "password"
    password.write_text("of last year")
    url = f"zookeeper://bob@{guarded.ensemble.hosts()}?sasl=on&namespace=login"
    with lockfast.connect(f"{url}&password_file={password}", connect_timeout=30) as client:
        for _ in range(2):
            with pytest.raises(AccessDeniedError, match="refused our credentials"):
                client.lock("orders/42").try_acquire()
        password.write_text(PASSWORD)
        with client.lock("orders/42"):
            pass


def test_the_package_for_sasl_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "puresasl", None)
    with pytest.raises(StoreMisconfiguredError, match=r"pip install 'kazoo\[sasl\]'"):
        lockfast.connect("zookeeper://bob:secret@127.0.0.1?sasl=on")
