"""The etcd guard's gateway reported a write whose reply was lost as surely not executed."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lockfast.errors import OutcomeUnknownError, StoreMisconfiguredError, StoreUnavailableError
from lockfast.guards.etcd import EtcdGuard, gateway

READ = {"responses": [{"response_range": {"kvs": [{"value": "MA=="}]}}]}
"""The floor 0."""


@contextlib.contextmanager
def member(*replies: bytes) -> Iterator[tuple[str, list[Any]]]:
    """Yield the URL of a member that sends each of the replies once, and what it received."""
    received: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection, connection.makefile("rb") as file:
                    length = 0
                    while (line := file.readline()) != b"\r\n":
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.partition(b":")[2])
                    received.append(json.loads(file.read(length)))
                    connection.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        thread.join()


def answer(document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_write_without_a_reply_may_have_been_executed(cut: bytes) -> None:
    with member(answer(READ), cut) as (url, received):
        with pytest.raises(OutcomeUnknownError, match="may have been executed"):
            EtcdGuard(gateway(url)).put("orders/42", 17, "data/42", "paid")
    assert any("request_put" in operation for operation in received[1]["success"])


@pytest.mark.parametrize("cut", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_read_without_a_reply_has_changed_nothing(cut: bytes) -> None:
    with member(cut) as (url, _), pytest.raises(StoreUnavailableError, match="did not answer"):
        EtcdGuard(gateway(url)).put("orders/42", 17, "data/42", "paid")


def test_a_member_that_refuses_the_connection_has_executed_nothing() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            gateway(url)({"success": [{"request_put": {}}]})


@pytest.mark.parametrize(
    "url",
    ["", "10.0.0.1:2379", "etcd://10.0.0.1", "http://", "http://host:x", "http://root:s3cret@host"],
)
def test_a_url_that_cannot_work_is_refused_before_it_is_used(url: str) -> None:
    with pytest.raises(StoreMisconfiguredError, match=r"http://10\.0\.0\.1:2379") as refused:
        gateway(url)
    assert "s3cret" not in str(refused.value)
