"""An error about a certificate advised `add ?ca=file`, whatever was wrong with it.

A server that refused the client's own certificate, or that was asked without TLS, closed the
connection, and the error did not mention TLS at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

import lockfast
from lockfast import aio
from lockfast.errors import StoreError, StoreMisconfiguredError

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@contextlib.contextmanager
def closing_server(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the address of a server that ends every connection without a reply."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                wrapped = context.wrap_socket(client, server_side=True) if context else client
                with wrapped:
                    wrapped.recv(1)  # and close: with unread data, that resets the connection

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def ask(url: str) -> None:
    with lockfast.connect(url) as client:
        client.ping()


def ask_in_a_task(url: str) -> None:
    async def story() -> None:
        async with aio.connect(url) as client:
            await client.ping()

    asyncio.run(story())


both_faces = pytest.mark.parametrize("face", [ask, ask_in_a_task])
Ask = Callable[[str], None]


@both_faces
@pytest.mark.parametrize("scheme", ["https", "etcds", "rediss"])
@pytest.mark.parametrize(
    ("wrong", "advice"),
    [("expired", "renewed"), ("host", "host name that is in"), ("authority", r"\?ca=FILE")],
)
def test_the_advice_fits_what_is_wrong(
    scheme: str, wrong: str, advice: str, face: Ask, tmp_path: Path
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    trusted = other if wrong == "authority" else authority
    trusted.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(
        "elsewhere.example" if wrong == "host" else "127.0.0.1",
        not_before=LONG_AGO,
        not_after=LONG_AGO + datetime.timedelta(days=1) if wrong == "expired" else None,
    ).configure_cert(context)
    with closing_server(context) as address:
        with pytest.raises(StoreMisconfiguredError, match=advice) as refused:
            face(f"{scheme}://{address}?ca={tmp_path / 'ca.pem'}")
    assert ("ca=FILE" in str(refused.value)) == (wrong == "authority")


@both_faces
def test_a_connection_closed_without_a_reply_may_be_due_to_tls(face: Ask) -> None:
    with closing_server() as address:
        # The last attempt may run out of time; the error then tells of the one before it, too.
        with pytest.raises(StoreError, match="requires TLS or another client certificate"):
            face(f"http://{address}")
