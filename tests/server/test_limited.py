"""A server over a store without a queue, shared locks, or a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.servers.lockserver import ServerThread


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread("quorum+memory://3/limited") as started:
        yield started


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/sessions/s/claims/1", {"lock": "a", "mode": "shared", "queue": False}),
        ("PUT", "/v1/sessions/s/claims/1", {"lock": "a", "priority": 5, "queue": False}),
        ("PUT", "/v1/limits/semaphore/a", {"limit": 3}),
        ("GET", "/v1/events", None),
    ],
)
def test_what_the_store_cannot_do_is_not_implemented(
    server: ServerThread, method: str, path: str, body: Any
) -> None:
    response = httpx.request(method, server.base + path, json=body, timeout=30)
    assert response.status_code == 501, response.text


def test_the_server_is_ready(server: ServerThread) -> None:
    response = httpx.get(f"{server.base}/readyz", timeout=30)
    assert (response.status_code, response.json()) == (200, {"status": "ready"})
