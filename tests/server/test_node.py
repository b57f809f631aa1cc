"""A server as a node of a majority: whose session it is, which locks, and what is malformed."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from lockfast.core.reasons import CLOSED
from lockfast.server.config import Policy
from lockfast.server.node_service import NodeOptions
from lockfast.server.quotas import Quotas
from lockfast.server.rights import READ, Grant, RightsTable
from lockfast.stores.lockserver.errors import TYPES
from tests.server.conftest import Secured

SKEW_US = 60_000_000
SILENCE_MS = 60_000
_numbers = itertools.count(1)


class Served(Secured):
    """A server that is a node, and clients that are closed with it."""

    def __init__(self, directory: Path, quotas: Quotas | None) -> None:
        options = NodeOptions(str(directory / "node"), SKEW_US, SILENCE_MS)
        super().__init__(directory, f"memory://{directory}", quotas, options)
        self.clients = ExitStack()

    def http(self, principal: str = "", **headers: str) -> httpx.Client:
        return self.clients.enter_context(super().http(principal, **headers))


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(tmp_path, getattr(request, "param", None))
    with made.thread, made.clients:
        nodes = made.thread.server.nodes
        assert nodes is not None
        nodes.began_s -= 3600  # it has been up for longer than its silence
        yield made


class Principal:
    """One principal's requests to the node."""

    def __init__(self, node: Served, name: str) -> None:
        self.http = node.http(name)
        self.name = name

    def ask(self, request: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/node/{request}", json=fields)

    def answer(self, request: str, **fields: Any) -> dict[str, Any]:
        response = self.ask(request, **fields)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def take(self, session: str, name: str, **fields: Any) -> dict[str, Any]:
        """Propose a ballot; return the claim."""
        claim = {
            "session": session,
            "n": next(_numbers),
            "kind": "lock",
            "name": name,
            "ballot": time.time_ns() // 1000,
        }
        answer = self.answer("take", **claim, open=opening(session), **fields)
        assert answer["status"] == "ok", answer
        return claim


def opening(session: str, **fields: Any) -> dict[str, Any]:
    return {"session": session, "ttl_ms": 30_000, "owner": "test", **fields}


def principals(node: Served, *names: str) -> list[Principal]:
    return [Principal(node, name) for name in names]


def is_held(node: Served, name: str) -> bool:
    views = Principal(node, "root").answer("locks", kind="lock", name=name)["locks"]
    return views[0]["holder"] is not None


def forbidden(response: httpx.Response) -> bool:
    return response.status_code == 403 and response.json()["type"] == f"{TYPES}forbidden"


def audited(node: Served, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in node.audit.read_text().splitlines()]
    return [line for line in lines if line["what"] == what]


# ── rights ───────────────────────────────────────────────────────────────────────────


def test_a_ballot_needs_the_right_to_acquire(node: Served) -> None:
    alice, bob = principals(node, "alice", "bob")
    alice.take("s-1", "orders/1")
    fields = {"session": "s-2", "n": 1, "kind": "lock", "name": "orders/2"}
    refused = bob.ask("take", **fields, ballot=time.time_ns() // 1000, open=opening("s-2"))
    assert forbidden(refused)
    assert not is_held(node, "orders/2")
    (line,) = audited(node, "request refused")
    assert (line["principal"], line["path"]) == ("bob", "/v1/node/take")


def test_nobody_without_rights_reaches_the_node(node: Served) -> None:
    assert node.http().get("/v1/node").status_code == 401
    assert forbidden(node.http("nobody").get("/v1/node"))
    about = node.http("alice").get("/v1/node").json()
    assert (about["skew_us"], about["silence_ms"]) == (SKEW_US, SILENCE_MS)


def test_a_released_ballot_needs_the_right_too(node: Served) -> None:
    """A node notes it, and refuses lower ones from then on."""
    (bob,) = principals(node, "bob")
    claim = {"session": "s-1", "n": 1, "kind": "lock", "name": "orders/1"}
    assert forbidden(bob.ask("give", **claim, ballot=time.time_ns() // 1000 + SKEW_US // 2))


def test_what_is_held_can_be_released_after_the_right_is_lost(node: Served) -> None:
    (alice,) = principals(node, "alice")
    claim = alice.take("s-1", "orders/1")
    policy = Policy(RightsTable([Grant("alice", "", "else", frozenset({READ}))]))
    server = node.thread.server
    node.thread.loop.call_soon_threadsafe(server.set_policy, policy)
    # Answered after the policy was set: the loop runs calls in order.
    assert forbidden(alice.ask("give", **{**claim, "name": "orders/2"}))
    assert alice.answer("give", **claim)["found"]


def test_claims_are_restored_only_with_the_right(node: Served) -> None:
    (bob,) = principals(node, "bob")
    ballot = time.time_ns() // 1000
    both = [restored(1, "orders/1", ballot), restored(2, "billing/1", ballot + 1)]
    answer = bob.answer("sync", open=opening("s-1"), flight=3, claims=both)
    assert [claim["name"] for claim in answer["claims"]] == ["billing/1"]


def restored(n: int, name: str, ballot: int) -> dict[str, Any]:
    return {
        "n": n,
        "kind": "lock",
        "name": name,
        "ballot": ballot,
        "actor": "",
        "value": None,
        "lock_delay_ms": 0,
        "restore": True,
    }


def test_no_claim_is_restored_with_a_ballot_from_the_future(node: Served) -> None:
    """The node would refuse every other ballot for the lock for ever."""
    (alice,) = principals(node, "alice")
    claims = [restored(1, "orders/1", 1 << 53)]
    answer = alice.answer("sync", open=opening("s-1"), flight=2, claims=claims)
    assert answer.get("claims", []) == []
    alice.take("s-2", "orders/1")


# ── sessions ─────────────────────────────────────────────────────────────────────────


def test_a_session_belongs_to_the_principal_that_opened_it(node: Served) -> None:
    alice, blind = principals(node, "alice", "blind")
    claim = alice.take("s-1", "orders/1")
    other = {**claim, "n": 99, "name": "orders/2", "ballot": claim["ballot"] + 1}
    foreign: list[tuple[str, dict[str, Any]]] = [
        ("open", opening("s-1")),
        ("take", {**other, "open": opening("s-1")}),
        ("give", claim),
        ("keep", {"session": "s-1"}),
        ("sync", {"open": opening("s-1"), "flight": 100, "claims": []}),
        ("describe", {**claim, "what": "actor", "text": "thief"}),
    ]
    for request, fields in foreign:
        assert blind.answer(request, **fields)["status"] == "unknown", request
    assert is_held(node, "orders/1")
    assert not is_held(node, "orders/2")
    assert alice.answer("keep", session="s-1")["status"] == "ok"


def test_an_ended_session_still_belongs_to_its_principal(node: Served) -> None:
    """Another one must not reopen its id."""
    alice, blind = principals(node, "alice", "blind")
    alice.take("s-1", "orders/1")
    alice.answer("end", session="s-1", reason=CLOSED)
    node.thread.server.nodes.node("")._bound.clear()  # type: ignore[union-attr]
    assert blind.answer("open", **opening("s-1"))["status"] == "unknown"
    sync = blind.answer("sync", open=opening("s-1"), flight=1, claims=[])
    assert sync["status"] == "unknown"


def test_ending_a_session_of_others_needs_the_right_to_revoke(node: Served) -> None:
    alice, bob, blind = principals(node, "alice", "bob", "blind")
    blind.take("s-1", "orders/1")
    bob.take("s-2", "billing/1")
    assert forbidden(blind.ask("end", session="s-2", reason="silent"))
    assert forbidden(alice.ask("end", session="s-2", reason="silent"))
    assert forbidden(alice.ask("end", session="s-1", reason=CLOSED))
    assert is_held(node, "orders/1")
    assert is_held(node, "billing/1")
    assert alice.answer("end", session="s-1", reason="silent")["found"]
    assert blind.answer("keep", session="s-1") == {"status": "ended", "reason": "silent"}
    (line,) = audited(node, "revoked")
    assert (line["principal"], line["session"], line["reason"]) == ("alice", "s-1", "silent")


def test_the_owner_names_the_principal(node: Served) -> None:
    alice, blind, root = principals(node, "alice", "blind", "root")
    claim = alice.take("s-1", "orders/1")
    holder = root.answer("locks", kind="lock", name="orders/1")["locks"][0]["holder"]
    assert holder["owner"] == "test [alice]"
    again = {**claim, "session": "s-2", "n": 1, "ballot": claim["ballot"] + 1}
    taken = blind.answer("take", **again, open=opening("s-2"))
    assert taken["status"] == "held"
    assert "holder" not in taken, "it may not read the lock"


def test_a_client_does_not_choose_its_process(node: Served) -> None:
    """Others would watch it, and take its death for that of the session."""
    alice, root = principals(node, "alice", "root")
    alice.answer("open", **opening("s-1", process="1@another-machine"))
    (view,) = root.answer("sessions", after="", limit=1)["sessions"]
    assert view["process"] == ""


def test_reads_show_what_a_principal_may_see(node: Served) -> None:
    alice, bob, root = principals(node, "alice", "bob", "root")
    alice.take("s-1", "orders/1")
    bob.take("s-2", "billing/1")

    def names(who: Principal) -> list[str]:
        page = who.answer("locks", kind="lock", name="", limit=1)
        return [view["name"] for view in page["locks"]]

    def sessions(who: Principal) -> list[str]:
        return [view["session"] for view in who.answer("sessions", after="", limit=2)["sessions"]]

    assert names(alice) == ["orders/1"], "an empty page is skipped"
    assert names(bob) == names(root) == ["billing/1"]
    assert (sessions(alice), sessions(bob)) == (["s-1"], ["s-2"])
    assert sessions(root) == ["s-1", "s-2"]
    assert bob.answer("locks", kind="lock", name="orders/1")["locks"][0]["holder"] is None
    assert bob.answer("claims", session="s-1").get("claims", []) == []
    assert len(alice.answer("claims", session="s-1")["claims"]) == 1


# ── wakes ────────────────────────────────────────────────────────────────────────────


def test_a_contender_is_woken_by_a_line(node: Served) -> None:
    alice, blind = principals(node, "alice", "blind")
    claim = alice.take("s-1", "orders/1")
    accept = {"Accept": "application/x-ndjson"}
    with blind.http.stream("GET", "/v1/node/sessions/s-2/wakes", headers=accept) as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines)) == {"what": "missed"}
        waiting = {**claim, "session": "s-2", "n": 7, "ballot": claim["ballot"] + 1}
        waiting |= {"since_us": 1, "open": opening("s-2", inbox="of another")}
        assert blind.answer("take", **waiting)["status"] == "held"
        assert alice.answer("give", **claim)["found"]
        assert json.loads(next(lines)) == {"what": "free", "n": 7}
    assert alice.http.get("/v1/node/sessions/s-2/wakes").status_code == 410


# ── limits and malformed requests ────────────────────────────────────────────────────


@pytest.mark.parametrize("node", [Quotas(claims=1, sessions=2)], indirect=True)
def test_quotas_count_what_a_node_holds(node: Served) -> None:
    (alice,) = principals(node, "alice")
    claim = alice.take("s-1", "orders/1")
    second = {**claim, "n": claim["n"] + 1, "name": "orders/2", "ballot": claim["ballot"] + 1}
    assert alice.ask("take", **second).status_code == 429
    both = [restored(n, f"orders/{n}", claim["ballot"] + n) for n in (1, 2)]
    assert alice.ask("sync", open=opening("s-1"), flight=3, claims=both).status_code == 429
    alice.answer("give", **claim)
    assert alice.answer("take", **second)["status"] == "ok"
    alice.answer("open", **opening("s-2"))
    assert alice.ask("open", **opening("s-3")).status_code == 429


MALFORMED: list[tuple[str, dict[str, Any]]] = [
    ("keep", {}),
    ("keep", {"session": "s 1"}),
    ("keep", {"session": 1}),
    ("keep", {"session": "s-1", "more": 1}),
    ("open", opening("s-1", ttl_ms=SILENCE_MS + 1)),
    ("open", opening("s-1", ttl_ms=0)),
    ("open", opening("s-1", owner="a\nb")),
    ("open", opening("s-1", owner="x" * 5000)),
    ("give", {"session": "s-1", "n": 1, "kind": "lock", "name": "a//b", "ballot": 1}),
    ("give", {"session": "s-1", "n": -1, "kind": "lock", "name": "a", "ballot": 1}),
    ("give", {"session": "s-1", "n": 1, "kind": "lock", "name": "a", "ballot": 0}),
    ("give", {"session": "s-1", "n": 1, "kind": "lock", "name": "a", "ballot": (1 << 53) + 1}),
    ("give", {"session": "s-1", "n": 1, "kind": "l\x1fk", "name": "a", "ballot": 1}),
    ("give", {"session": "s-1", "n": 1, "kind": "lock", "name": "a", "ballot": 1, "close_ms": -1}),
    (
        "take",
        {
            "session": "s-1",
            "n": 1,
            "kind": "lock",
            "name": "orders/1",
            "ballot": 1,
            "open": opening("s-2"),
        },
    ),
    (
        "describe",
        {
            "session": "s-1",
            "n": 1,
            "kind": "lock",
            "name": "orders/1",
            "ballot": 1,
            "what": "owner",
            "text": "",
        },
    ),
    ("end", {"session": "s-1", "reason": ""}),
    ("locks", {"kind": "lock", "name": "", "limit": 1001}),
    ("locks", {"kind": "lock", "name": ""}),
    ("sessions", {"after": "", "limit": 0}),
    ("sync", {"open": opening("s-1"), "flight": -1, "claims": []}),
    ("sync", {"open": opening("s-1"), "flight": 1, "claims": [{}]}),
]


def test_malformed_requests_are_refused_and_typed(node: Served) -> None:
    (root,) = principals(node, "root")
    for request, fields in MALFORMED:
        response = root.ask(request, **fields)
        assert response.status_code == 422, (request, fields, response.text)
        assert response.json()["type"] == f"{TYPES}invalid-request"
    for body in (b"", b"[]", b"{", b'{"session":"a","session":"b"}', b"[" * 10_000, b"\xff"):
        headers = {"Content-Type": "application/json"}
        response = root.http.post("/v1/node/keep", content=body, headers=headers)
        assert response.status_code == 422, (body[:20], response.text)
    text = {"Content-Type": "text/plain"}
    assert root.http.post("/v1/node/keep", content=b"{}", headers=text).status_code == 415


def test_only_a_list_of_claims_may_be_large(node: Served) -> None:
    (alice,) = principals(node, "alice")
    large = "x" * 100_000
    assert alice.ask("keep", session=large).status_code == 413
    ballot = time.time_ns() // 1000 - 1000
    claims = [restored(n, f"orders/{n}", ballot + n) for n in range(1, 1001)]
    assert len(json.dumps(claims)) > 65536
    answer = alice.answer("sync", open=opening("s-1"), flight=1001, claims=claims)
    assert len(answer["claims"]) == 1000


@pytest.mark.parametrize("namespace", ["../up", "a/b", ".hidden", "x" * 65, "%00"])
def test_a_namespace_is_checked_before_it_names_a_file(node: Served, namespace: str) -> None:
    response = node.http("root").get("/v1/node", params={"namespace": namespace})
    assert response.status_code == 422
    directory = Path(node.audit.parent, "node")
    assert not list(directory.rglob("*")) if directory.exists() else True


def test_namespaces_are_separate_nodes(node: Served) -> None:
    (root,) = principals(node, "root")
    first, second = (
        root.http.get("/v1/node", params={"namespace": name}).json()["id"] for name in ("a", "b")
    )
    assert first != second
    files = sorted(path.name for path in (node.audit.parent / "node" / "nodes").glob("*.db"))
    assert files == ["a.db", "b.db"]


def test_other_servers_are_no_nodes(secured: Secured) -> None:
    with secured.http("root") as http:
        assert http.get("/v1/node").status_code == 404
        assert "/v1/node" not in http.get("/openapi.json").json()["paths"]


def test_the_description_lists_the_requests_of_a_node(node: Served) -> None:
    paths = node.http().get("/openapi.json").json()["paths"]
    assert "post" in paths["/v1/node/take"]
    (alice,) = principals(node, "alice")
    alice.take("s-1", "orders/1")
    text = node.http("root").get("/metrics").text
    assert 'lockfast_server_requests_total{command="NodeTake",status="200"} 1' in text


def test_data_deleted_under_a_running_node_silences_it(node: Served) -> None:
    """How long the server has run does not matter: it may have granted a lock just before."""
    (root,) = principals(node, "root")
    before = root.http.get("/v1/node").json()
    assert before["silent_ms"] == 0
    (node.audit.parent / "node" / "nodes" / "default.db").unlink()
    after = root.http.get("/v1/node").json()
    assert after["id"] != before["id"]
    assert after["silent_ms"] > SILENCE_MS
