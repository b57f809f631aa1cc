"""Random requests: no reply is a 5xx of ours, none is untyped, and memory stays flat.

`LOCKFAST_FUZZ=100000 ./dev test tests/server/test_fuzz.py --timeout 0 -s` sends that many, and
prints rates, statuses and the server's memory.
"""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections import Counter
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
    options = ("--insecure-dev", "--node", str(directory / "node"))
    with ServerProcess("memory://", directory, *options) as started:
        yield started


def resident(process: ServerProcess) -> int:
    pages = Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Tally:
    """Counts the answers, and checks that each is typed and none is a failure of the server."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._statuses: Counter[int] = Counter()

    def check(self, status: int, typed: bool, about: str) -> None:
        self._statuses[status] += 1
        assert status < 500 or status == 501, about
        assert not 300 <= status < 400, about
        assert status < 400 or typed, about

    def report(self, what: str, *memory: int) -> None:
        count, took_s = self._statuses.total(), time.monotonic() - self._began_s
        statuses = ", ".join(f"{status}: {n}" for status, n in sorted(self._statuses.items()))
        megabytes = " → ".join(f"{size / 1e6:.0f}" for size in memory)
        print(f"\n{count} {what}, {count / took_s:.0f}/s; {statuses}", end="")
        print(f"; resident {megabytes} MB" if memory else "")


class Fuzzer:
    """Requests that follow the OpenAPI description, mostly."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._operations = [
            (method, path, about)
            for path, methods in document(is_node=True)["paths"].items()
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
        """Return bytes with a few changes."""
        draw, changed = self._random, bytearray(data or b"{}")
        for _ in range(draw.randrange(1, 8)):
            at = draw.randrange(len(changed) + 1)
            changed[at : at + draw.randrange(3)] = draw.randbytes(draw.randrange(4))
        return bytes(changed)


def is_problem(response: httpx.Response) -> bool:
    if response.headers.get("content-type") != "application/problem+json":
        return False
    return str(response.json()["type"]).startswith("urn:lockfast:problem:")


def test_requests_that_follow_the_description(server: ServerProcess) -> None:
    fuzzer, tally = Fuzzer(seed=1), Tally()
    sizes: list[int] = []
    with httpx.Client(base_url=server.url, timeout=60) as http:
        for at in range(REQUESTS):
            method, url, headers, body = fuzzer.request()
            response = http.request(method, url, headers=headers, content=body)
            about = f"seed 1, request {at}: {method} {url} {body!r} gave {response.text[:500]}"
            tally.check(response.status_code, is_problem(response), about)
            if at % (REQUESTS // 5) == 0:
                sizes.append(resident(server))
        sizes.append(resident(server))
        tally.report("requests that follow the description", *sizes)
        assert sizes[-1] - sizes[1] < GROWTH_MAX, "memory grows"
        assert http.get("/healthz").status_code == 200


def test_raw_bytes_on_the_socket(server: ServerProcess) -> None:
    fuzzer, draw, tally = Fuzzer(seed=2), random.Random(2), Tally()
    before = resident(server)
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
            about = f"seed 2, {at}: {data!r} gave {answer[:500]!r}"
            tally.check(int(answer.split(b" ", 2)[1]), b"problem+json" in answer, about)
    tally.report("answers to raw bytes", before, resident(server))
    assert resident(server) - before < GROWTH_MAX, "memory grows"
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/healthz").status_code == 200


# Some of schemathesis's own strategies use the module `random`.
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_schemathesis_finds_nothing(secured: Secured) -> None:
    """Generated by schemathesis from the description, for a principal with all rights."""
    import hypothesis
    import schemathesis

    schema = schemathesis.openapi.from_dict(document())
    headers = {"Authorization": f"Bearer {secured.token_of['root']}"}
    tally = Tally()
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
                tally.check(
                    response.status_code, is_problem(response), f"{sent} gave {response.text}"
                )

            check()
    tally.report("requests by schemathesis")
