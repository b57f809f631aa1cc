"""Random requests: no answer may be a 5xx of ours, none untyped, and memory stays flat.

`LOCKFAST_FUZZ=100000 ./dev test tests/server/test_fuzz.py --timeout 0` sends that many.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockfast.server.openapi import document
from tests.server.conftest import Secured
from tests.servers.lockserver import ServerProcess

REQUESTS = int(os.environ.get("LOCKFAST_FUZZ", "1000"))
TEXTS = [
    "",
    "a",
    "a/b",
    "a//b",
    "..",
    "\x00",
    "\x1f",
    "ü",
    "\u0301",
    "x" * 600,
    "%",
    "' OR 1=1",
    "lock",
]
NUMBERS = [0, 1, -1, 2, 60_000, 1 << 31, 1 << 53, 1 << 60, 1 << 70, -(1 << 60)]
GROWTH_MAX = 96 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("fuzzed")
    with ServerProcess("memory://", directory, "--insecure-dev") as started:
        yield started


def resident(process: ServerProcess) -> int:
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Fuzzer:
    """Requests that follow the OpenAPI description, mostly."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._operations = [
            (method, path, about)
            for path, methods in document()["paths"].items()
            for method, about in methods.items()
            if not path.endswith("/wakes")  # a stream, which does not end
        ]

    def request(self) -> tuple[str, str, dict[str, str], bytes]:
        draw = self._random
        method, path, about = draw.choice(self._operations)
        query, headers = {}, {}
        for parameter in about["parameters"]:
            value = self._value(parameter["schema"])
            text = value if isinstance(value, str) else json.dumps(value)
            if parameter["in"] == "path":
                path = path.replace(
                    f"{{{parameter['name']}}}", httpx.QueryParams({"": text}).__str__()[1:]
                )
            elif draw.random() < 0.3 and parameter["in"] == "query":
                query[parameter["name"]] = text
        body = b""
        if "requestBody" in about:
            schema = about["requestBody"]["content"]["application/json"]["schema"]
            body = json.dumps(self._value(schema)).encode()
            if draw.random() < 0.1:
                body = self.spoilt(body)
            headers["content-type"] = "application/json"
        return method.upper(), f"{path}?{httpx.QueryParams(query)}", headers, body

    def _value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        draw = self._random
        if draw.random() < 0.05 or depth > 6:
            return draw.choice([None, True, 1.5, [], {}, "x", 7])
        if "enum" in schema:
            return draw.choice([*schema["enum"], "nothing"])
        if "anyOf" in schema:
            return self._value(draw.choice(schema["anyOf"]), depth + 1)
        kind = schema.get("type")
        if kind == "string":
            return draw.choice(["s1", "s2", *TEXTS])
        if kind == "integer":
            return draw.choice([1, 2, 3, *NUMBERS])
        if kind == "boolean":
            return draw.random() < 0.5
        if kind == "array":
            items = schema.get("items", {})
            return [self._value(items, depth + 1) for _ in range(draw.randrange(3))]
        required = schema.get("required", ())
        return {
            name: self._value(of, depth + 1)
            for name, of in schema.get("properties", {}).items()
            if (name in required and draw.random() < 0.95) or draw.random() < 0.3
        }

    def spoilt(self, data: bytes) -> bytes:
        """Bytes with a few changes."""
        draw, changed = self._random, bytearray(data or b"{}")
        for _ in range(draw.randrange(1, 8)):
            at = draw.randrange(len(changed) + 1)
            changed[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        return bytes(changed)


def test_requests_that_follow_the_description(server: ServerProcess) -> None:
    fuzzer = Fuzzer(seed=1)
    grown: list[int] = []
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for at in range(REQUESTS):
            method, url, headers, body = fuzzer.request()
            response = http.request(method, url, headers=headers, content=body)
            about = f"seed 1, request {at}: {method} {url} {body!r} gave {response.text[:500]}"
            assert response.status_code < 500 or response.status_code == 501, about
            if response.status_code >= 400:
                assert response.headers["content-type"] == "application/problem+json", about
                assert response.json()["type"].startswith("urn:lockfast:problem:"), about
            if at == REQUESTS // 5:
                grown.append(resident(server))
        assert resident(server) - grown[0] < GROWTH_MAX, "memory grows"
        assert http.get("/healthz").status_code == 200


def test_raw_bytes_on_the_socket(server: ServerProcess) -> None:
    fuzzer, draw = Fuzzer(seed=2), random.Random(2)
    host, _, port = server.url.partition("://")[2].partition(":")
    for at in range(max(200, REQUESTS // 5)):
        method, url, _, body = fuzzer.request()
        head = f"{method} {url} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        data = fuzzer.spoilt(head.encode() + body) if draw.random() < 0.9 else draw.randbytes(300)
        with socket.create_connection((host, int(port)), 60) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := peer.recv(65536):
                answer += piece
        if answer:
            status = int(answer.split(b" ", 2)[1])
            assert status < 500 or status == 501, f"seed 2, {at}: {data!r} gave {answer[:500]!r}"
            assert status < 400 or b"problem+json" in answer, f"{data!r} gave {answer[:500]!r}"
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/healthz").status_code == 200


def test_schemathesis_finds_nothing(secured: Secured) -> None:
    """Generated by schemathesis from the description, for a principal with all rights."""
    import hypothesis
    import schemathesis

    schema = schemathesis.openapi.from_dict(document())
    headers = {"Authorization": f"Bearer {secured.token_of['root']}"}
    failed: list[str] = []
    lock = threading.Lock()
    with httpx.Client(base_url=secured.thread.base, timeout=60) as http:
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if operation.path.endswith("/wakes"):
                continue

            @hypothesis.settings(max_examples=max(5, REQUESTS // 100), database=None)
            @hypothesis.seed(1)
            @hypothesis.given(case=operation.as_strategy())
            def check(case: Any) -> None:
                sent = case.as_transport_kwargs(base_url=secured.thread.base, headers=headers)
                response = http.request(
                    sent["method"],
                    sent["url"],
                    params=sent.get("params"),
                    headers={k: str(v) for k, v in sent["headers"].items()},
                    json=sent.get("json"),
                )
                with lock:
                    if response.status_code >= 500 and response.status_code != 501:
                        failed.append(f"{sent} gave {response.text}")

            check()
    assert failed == []
