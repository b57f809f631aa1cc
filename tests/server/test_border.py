"""What is refused before anything is read: other hosts, other origins, too much, too slow."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from lockfast.core import commands as c
from lockfast.server import listening, requests
from lockfast.stores.lockserver.routes import BODY_MAX
from tests.server.conftest import Secured, take
from tests.servers.lockserver import ServerThread


@pytest.fixture
def open_server() -> Iterator[ServerThread]:
    with ServerThread("memory://border") as started:
        yield started


def raw(server: ServerThread, data: bytes, wait_s: float = 10) -> bytes:
    """Send bytes and return everything received until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), wait_s) as peer:
        peer.sendall(data)
        received = b""
        while piece := peer.recv(65536):
            received += piece
        return received


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.io"])
def test_another_host_is_misdirected(open_server: ServerThread, host: str) -> None:
    """A page whose name was rebound to 127.0.0.1 still sends its own name."""
    response = httpx.get(open_server.base + "/healthz", headers={"Host": host})
    assert response.status_code == 421


def test_two_hosts_are_refused(open_server: ServerThread) -> None:
    told = raw(
        open_server,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n",
    )
    assert told.split()[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_change_nothing(open_server: ServerThread, headers: dict[str, str]) -> None:
    response = httpx.post(open_server.base + "/v1/sessions", json={}, headers=headers)
    assert response.status_code == 403
    assert response.json()["type"].endswith("cross-origin")


@pytest.mark.parametrize(
    "media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_is_refused(open_server: ServerThread, media: str) -> None:
    url = open_server.base + "/v1/sessions"
    response = httpx.post(url, content=b"{}", headers={"Content-Type": media})
    assert response.status_code == 415


def test_there_is_no_cors(open_server: ServerThread) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "PUT"}
    response = httpx.options(open_server.base + "/v1/sessions", headers=asked)
    assert response.status_code == 405
    response = httpx.get(open_server.base + "/v1/locks", headers=asked)
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_every_response_has_the_headers(open_server: ServerThread) -> None:
    for path in ("/healthz", "/v1/locks", "/nothing", "/v1/locks?limit=x"):
        response = httpx.get(open_server.base + path)
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "insecure-dev" in response.headers["lockfast-insecure"]


def test_a_large_body_is_refused(open_server: ServerThread) -> None:
    body = json.dumps({"owner": "x" * 70_000}).encode()
    url, media = open_server.base + "/v1/sessions", {"Content-Type": "application/json"}
    assert httpx.post(url, content=body, headers=media).status_code == 413
    chunked = httpx.post(url, content=iter([body[:1000], body[1000:]]), headers=media)
    assert chunked.status_code == 413


def test_a_deep_body_is_refused(open_server: ServerThread) -> None:
    body = b'{"ttl_ms":' + b"[" * 60_000 + b"]" * 1000
    media = {"Content-Type": "application/json"}
    for content in (body, b"[" * 40 + b"]" * 40):
        response = httpx.post(open_server.base + "/v1/sessions", content=content, headers=media)
        assert response.status_code == 422


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b'{"a":1,"a":2}', b'{"ttl_ms":NaN}', b'{"ttl_ms":1e400}', b'"text"', b"[1]"],
)
def test_malformed_json_is_refused(open_server: ServerThread, body: bytes) -> None:
    url = open_server.base + "/v1/sessions/s/claims/1"
    response = httpx.put(url, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


def test_a_large_head_is_refused(open_server: ServerThread) -> None:
    told = raw(open_server, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000)
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in told


def test_a_slow_head_is_cut_off(open_server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "HEADERS_S", 0.2)
    assert raw(open_server, b"GET / HTTP/1.1\r\nHost: loc") == b""
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(open_server, first + b"GET /hea").startswith(b"HTTP/1.1 200 "), "and then the end"


def test_a_slow_body_is_cut_off(open_server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_S", 0.2)
    told = raw(
        open_server,
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
    )
    assert told.startswith(b"HTTP/1.1 408 ")


def test_a_request_is_not_smuggled_behind_another(open_server: ServerThread) -> None:
    """Two lengths that disagree: a proxy may see one request where the server sees two."""
    told = raw(
        open_server,
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    )
    assert told.startswith(b"HTTP/1.1 400 ") or told.count(b"HTTP/1.1 ") <= 2
    two = raw(
        open_server,
        b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Content-Length: 5\r\n\r\nabcde",
    )
    assert two.startswith(b"HTTP/1.1 400 ")


def test_the_audit_log_is_one_json_object_per_line(secured: Secured) -> None:
    with secured.http() as stranger, secured.http("root") as root:
        stranger.get("/v1/locks/lock/a%1b[31m%22}")
        stranger.get("/healthz", headers={"Host": "evil"})
        take(root, "orders/1", "r")
        root.post("/v1/revocations", json={"name": "orders/1", "reason": "a\nb\x1b"})
    lines = secured.audit.read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["what"] for entry in entries] == ["login refused", "request refused", "revoked"]
    assert entries[2]["principal"] == "root"
    assert entries[2]["reason"] == "a\nb\x1b"
    assert "\x1b" not in secured.audit.read_text()
    assert secured.audit.stat().st_mode & 0o777 == 0o600


def test_waiting_is_bounded(open_server: ServerThread) -> None:
    with httpx.Client(base_url=open_server.base) as http:
        take(http, "a", "one")
        began = time.monotonic()
        response = http.put(
            "/v1/sessions/two/claims/1",
            json={"lock": "a", "open": {"ttl_ms": 60_000, "owner": ""}},
            headers={"Prefer": "wait=1"},
        )
        assert response.status_code == 202
        assert response.headers["preference-applied"] == "wait=1"
        assert time.monotonic() - began >= 1
        wrong = http.get("/v1/sessions/two/claims/1", headers={"Prefer": "wait=soon"})
        assert wrong.status_code == 422


def test_a_wait_looks_less_and_less_often(open_server: ServerThread) -> None:
    """A store may say for long that a claim ahead is about to expire: a clock may be wrong."""
    looks: list[c.Command] = []

    async def expiring(command: c.Command, timeout_ms: int) -> c.Reply:
        looks.append(command)
        return c.Queued((), 1)

    with httpx.Client(base_url=open_server.base) as http:
        take(http, "a", "one")
        take(http, "a", "two")
        open_server.server.service("")._send = expiring
        waited = http.get("/v1/sessions/two/claims/1", headers={"Prefer": "wait=1"})
    assert waited.status_code == 202
    assert set(looks) == {c.Look("two", 1)}
    assert len(looks) <= 10, "after 20, 40, 80 … ms, not every few milliseconds"


def test_the_limits_are_those_of_the_documentation() -> None:
    assert (listening.HEADERS_MAX, listening.HEADERS_S) == (16 * 1024, 10)
    assert (BODY_MAX, requests.BODY_S, requests.DEPTH_MAX) == (64 * 1024, 30, 32)


def test_process_and_inbox_are_never_the_clients(open_server: ServerThread) -> None:
    """Not even with --insecure-dev: another process's death must not end this session."""
    with httpx.Client(base_url=open_server.base) as http:
        opening = {"ttl_ms": 60_000, "owner": "x", "process": "1:2:3", "inbox": "evil"}
        assert http.put("/v1/sessions/opened", json=opening).status_code == 200
        body = {"lock": "process", "open": opening}
        assert http.put("/v1/sessions/entered/claims/1", json=body).status_code == 200
        views = http.get("/v1/sessions").json()["SessionsReply"]["sessions"]
        processes = {view["session"]: view["process"] for view in views}
        assert (processes["opened"], processes["entered"]) == ("", "")


def test_nothing_is_redirected(open_server: ServerThread) -> None:
    """A redirect from behind a proxy with TLS would send the token over plain HTTP."""
    for path in ("/v1/sessions/", "/healthz/", "//evil.example/", "/v1//locks"):
        assert httpx.get(open_server.base + path).status_code == 404
