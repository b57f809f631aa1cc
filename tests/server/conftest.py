"""A server with principals: alice has orders, bob has billing, root has everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockfast.server.config import Config, Policy
from lockfast.server.node_service import NodeOptions
from lockfast.server.quotas import Quotas
from lockfast.server.rights import ACQUIRE, ADMIN, READ, REVOKE, Grant, RightsTable
from lockfast.server.tokens import TokenFile
from tests.servers.lockserver import ServerThread

USE = frozenset({READ, ACQUIRE})
GRANTS = [
    Grant("alice", "", "orders", USE | {REVOKE}),
    Grant("alice", "team", "", USE),
    Grant("bob", "", "billing", USE),
    Grant("blind", "", "orders", frozenset({ACQUIRE})),
    Grant("root", "*", "", frozenset({ADMIN})),
]
PRINCIPALS = ("alice", "bob", "blind", "root", "nobody")


class Secured:
    """A server, its tokens, and an HTTP client for each principal."""

    def __init__(
        self,
        directory: Path,
        store_url: str,
        quotas: Quotas | None = None,
        node: NodeOptions | None = None,
    ) -> None:
        self.audit = directory / "audit.jsonl"
        self.tokens = TokenFile(str(directory / "tokens.json"))
        self.token_of = {name: self.tokens.create(name) for name in PRINCIPALS}
        policy = Policy(RightsTable(GRANTS), quotas or Quotas())
        self.config = Config(policy, audit_log=str(self.audit))
        self.thread = ServerThread(store_url, self.config, self.tokens, node=node)

    def http(self, principal: str = "", **headers: str) -> httpx.Client:
        if principal:
            headers["Authorization"] = f"Bearer {self.token_of[principal]}"
        return httpx.Client(base_url=self.thread.base, headers=headers, timeout=30)


@pytest.fixture
def secured(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Secured]:
    quotas: Any = getattr(request, "param", None)
    made = Secured(tmp_path, f"memory://{tmp_path}", quotas)
    with made.thread:
        yield made


def take(http: httpx.Client, name: str, session: str, n: int = 1, **fields: Any) -> httpx.Response:
    body = {"lock": name, "open": {"ttl_ms": 60_000, "owner": "test"}, **fields}
    return http.put(f"/v1/sessions/{session}/claims/{n}", json=body)
