"""Rights: each test tries to reach what belongs to another principal."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx
import pytest

from lockfast.core.commands import Wake
from lockfast.server import streams
from lockfast.server.config import Policy
from lockfast.server.problems import forbidden
from lockfast.server.quotas import Quotas, Usage
from lockfast.server.rights import Grant, Rights, RightsTable
from lockfast.server.service import Caller
from tests.server.conftest import GRANTS, USE, Secured, take


def kind_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    return str(response.json()["type"].rpartition(":")[2])


def test_a_prefix_ends_at_a_segment() -> None:
    rights = Rights([Grant("a", "", "orders", USE), Grant("a", "", "eu/", USE)])
    assert rights.allow("read", "orders")
    assert rights.allow("read", "orders/42/lines")
    assert rights.allow("acquire", "eu/1")
    assert not rights.allow("read", "orders-old")
    assert not rights.allow("read", "order")
    assert not rights.allow("revoke", "orders")
    assert not Rights([]).any()


def test_nothing_is_allowed_without_a_right(secured: Secured) -> None:
    with secured.http("nobody") as nobody, secured.http("bob") as bob:
        assert take(nobody, "orders/1", "n").status_code == 403
        assert nobody.get("/v1/locks").status_code == 403
        refused = take(bob, "orders/1", "b")
        assert (refused.status_code, kind_of(refused)) == (403, "forbidden")
        assert bob.get("/v1/locks", params={"namespace": "team"}).status_code == 403
        with secured.http("alice") as alice:
            assert take(alice, "orders/1", "a").status_code == 200
            assert take(alice, "orders-old/1", "a", 2).status_code == 403


def test_a_several_at_once_claim_needs_the_right_to_each(secured: Secured) -> None:
    places = [
        {"kind": "lock", "name": name, "mode": "exclusive"} for name in ("orders/1", "billing/1")
    ]
    with secured.http("alice") as alice:
        body = {"places": places, "open": {"ttl_ms": 60_000, "owner": "x"}}
        assert alice.put("/v1/sessions/a/claims/1", json=body).status_code == 403


def test_what_one_may_not_read_does_not_exist(secured: Secured) -> None:
    with secured.http("alice") as alice, secured.http("bob") as bob, secured.http("root") as root:
        take(alice, "orders/1", "a1")
        take(bob, "billing/1", "b1")
        views = bob.get("/v1/locks").json()["ListingReply"]["resources"]
        assert [view["name"] for view in views] == ["billing/1"]
        hidden = bob.get("/v1/locks/lock/orders/1").json()["ResourceView"]
        free = bob.get("/v1/locks/lock/orders/2").json()["ResourceView"]
        assert {**hidden, "name": ""} == {**free, "name": ""}
        sessions = bob.get("/v1/sessions").json()["SessionsReply"]["sessions"]
        assert [view["session"] for view in sessions] == ["b1"]
        assert bob.get("/v1/sessions/a1/claims").json()["ClaimsReply"]["claims"] == []
        assert bob.get("/v1/wait-graph").json() == {"waiters": [], "edges": []}
        everything = root.get("/v1/sessions").json()["SessionsReply"]["sessions"]
        assert [view["session"] for view in everything] == ["a1", "b1"]
        assert everything[0]["owner"] == "test [alice]"


def test_who_may_acquire_but_not_read_is_not_told_who_is_ahead(secured: Secured) -> None:
    with secured.http("alice") as alice, secured.http("blind") as blind:
        take(alice, "orders/1", "a")
        queued = take(blind, "orders/1", "x")
        assert queued.status_code == 202
        assert queued.json()["Queued"]["ahead"] == []
        assert blind.get("/v1/sessions/x/claims/1").json()["Queued"]["ahead"] == []
        busy = take(blind, "orders/1", "x", 2, queue=False)
        assert busy.status_code == 409
        assert busy.json()["reply"]["Busy"]["ahead"] == []
        assert "alice" not in busy.text
        seen = take(alice, "orders/1", "a2")
        assert seen.json()["Queued"]["ahead"] != []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/sessions/{s}/claims/1", None),
        ("DELETE", "/v1/sessions/{s}/claims/1", None),
        ("DELETE", "/v1/sessions/{s}", None),
        ("POST", "/v1/sessions/{s}/renewals", {}),
        ("PUT", "/v1/sessions/{s}", {"ttl_ms": 60_000, "owner": "x"}),
        ("PUT", "/v1/sessions/{s}/claims/1/value", {"value": "x"}),
        ("PUT", "/v1/sessions/{s}/claims/1/actor", {"actor": "x"}),
        ("PUT", "/v1/sessions/{s}/claims/1/mode", {"step": 1, "mode": "shared"}),
        ("PUT", "/v1/sessions/{s}/watch", {"on": True}),
        ("PUT", "/v1/sessions/{s}/claims/9", {"lock": "billing/9"}),
        (
            "PUT",
            "/v1/sessions/{s}/claims/9",
            {"lock": "billing/9", "open": {"ttl_ms": 60_000, "owner": "x"}},
        ),
        ("GET", "/v1/sessions/{s}/wakes", None),
    ],
)
def test_the_session_of_another_principal_is_over(
    secured: Secured, method: str, path: str, body: object
) -> None:
    """A foreign session gets the same reply as one that never existed; nothing happens to it."""
    with secured.http("alice") as alice, secured.http("bob") as bob:
        assert take(alice, "orders/1", "a").status_code == 200
        foreign = bob.request(method, path.format(s="a"), json=body)
        assert (foreign.status_code, kind_of(foreign)) == (410, "session-over")
        assert alice.get("/v1/sessions/a/claims/1").status_code == 200
        claims = alice.get("/v1/sessions/a/claims").json()["ClaimsReply"]["claims"]
        assert [(claim["n"], claim["actor"], claim["value"]) for claim in claims] == [(1, "", None)]


def test_another_server_over_the_store_knows_whose_a_session_is(secured: Secured) -> None:
    """The owner is stored: a server that never saw the session refuses it too."""
    with secured.http("alice") as alice, secured.http("bob") as bob:
        take(alice, "orders/1", "a")
        service = secured.thread.server.service("")
        service._bound.clear()
        assert bob.delete("/v1/sessions/a").status_code == 410
        assert alice.get("/v1/sessions/a/claims/1").status_code == 200


def test_an_owner_cannot_claim_to_be_another_principal(secured: Secured) -> None:
    with secured.http("bob") as bob, secured.http("root") as root:
        body = {"ttl_ms": 60_000, "owner": "x [root]", "process": "1", "inbox": "evil"}
        assert bob.put("/v1/sessions/b", json=body).status_code == 200
        (view,) = root.get("/v1/sessions").json()["SessionsReply"]["sessions"]
        assert (view["owner"], view["process"]) == ("x [bob]", "")


def test_claims_of_others_are_revoked_only_with_the_right(secured: Secured) -> None:
    with secured.http("alice") as alice, secured.http("bob") as bob, secured.http("root") as root:
        take(bob, "billing/1", "b")
        revoke = {"by": "the boss", "reason": "stuck"}
        unseen = alice.post("/v1/sessions/b/claims/1/revocation", json=revoke)
        assert unseen.json()["Done"] == {"found": False}
        assert alice.post("/v1/sessions/b/revocation", json=revoke).status_code == 403
        assert alice.post("/v1/sessions/b/expulsion", json={"reason": "x"}).status_code == 403
        own = bob.post("/v1/sessions/b/claims/1/revocation", json=revoke)
        assert own.status_code == 403, "bob has no right to revoke, not even his own"
        assert bob.get("/v1/sessions/b/claims/1").status_code == 200
        by_name = {"name": "billing/1", "reason": "stuck", "by": "the boss"}
        assert root.post("/v1/revocations", json=by_name).json() == {"revoked": 1}
        gone = bob.get("/v1/sessions/b/claims/1")
        assert gone.status_code == 410
        assert gone.json()["reply"]["Gone"] == {"reason": "revoked: stuck", "by": "root"}


def test_a_deadlock_that_does_not_stand_is_not_broken_for_others(secured: Secured) -> None:
    """`Break` names a victim: without a check it would cancel any waiting claim."""
    with secured.http("root") as root, secured.http("alice") as alice:
        take(root, "orders/1", "r")
        assert take(root, "orders/1", "r2").status_code == 202
        witnesses = [
            {"session": "r", "n": 1, "held": True},
            {"session": "r2", "n": 1, "held": False},
        ]
        done = alice.post("/v1/sessions/r2/claims/1/break", json={"witnesses": witnesses})
        assert done.json()["Done"] == {"found": False}
        assert root.get("/v1/sessions/r2/claims/1").status_code == 202


def test_events_are_filtered(secured: Secured) -> None:
    heard: list[str] = []
    ready = threading.Event()

    def follow() -> None:
        headers = {"Accept": "text/event-stream"}
        with secured.http("bob") as bob, bob.stream("GET", "/v1/events", headers=headers) as stream:
            ready.set()
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    heard.append(json.loads(line[5:])["name"])
                    return

    with secured.http("root") as root:
        take(root, "first", "r")
        follower = threading.Thread(target=follow)
        follower.start()
        assert ready.wait(10)
        for n in range(2, 200):  # until the log is followed
            take(root, "orders/secret", "r", n)
            take(root, "billing/1", "r", n + 1000)
            root.delete(f"/v1/sessions/r/claims/{n}")
            root.delete(f"/v1/sessions/r/claims/{n + 1000}")
            if heard:
                break
        follower.join(20)
    assert heard == ["billing/1"]


def test_a_stream_ends_when_its_right_is_gone(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHECK_S", 0.1)
    monkeypatch.setattr(streams, "PING_S", 0.1)
    accept = {"Accept": "application/x-ndjson"}
    with secured.http("bob") as bob:
        with bob.stream("GET", "/v1/sessions/b/wakes", headers=accept) as stream:
            lines = stream.iter_lines()
            assert json.loads(next(lines)) == {"what": "missed"}
            without = [grant for grant in GRANTS if grant.principal != "bob"]
            secured.thread.loop.call_soon_threadsafe(
                secured.thread.server.set_policy, Policy(RightsTable(without))
            )
            assert all(json.loads(line) == {"what": "ping"} for line in lines), "and then it ends"


def test_wakes_of_a_session_go_to_its_principal_only(secured: Secured) -> None:
    """A stream may be opened before its session: guessing the id must not reveal its wakes."""
    thread = secured.thread
    heard: list[dict[str, object]] = []

    async def spy() -> None:
        service = thread.server.service("")
        caller_of_bob = thread.server.caller

        class Request:
            def __init__(self, token: str) -> None:
                from starlette.datastructures import Headers, QueryParams

                self.headers = Headers({"authorization": f"Bearer {token}"})
                self.query_params = QueryParams("")
                self.scope: dict[str, object] = {"path": "/"}

        request = Request(secured.token_of["bob"])
        lines = streams.wakes(
            service,
            "a",
            streams.as_line,
            lambda: caller_of_bob(request),  # type: ignore[arg-type]
            thread.server.draining,
        )
        await anext(lines)
        ready.set()
        try:
            async with asyncio.timeout(2):
                async for line in lines:
                    heard.append(json.loads(line))
        except TimeoutError:
            pass
        await lines.aclose()  # type: ignore[attr-defined]

    ready = threading.Event()
    spying = asyncio.run_coroutine_threadsafe(spy(), thread.loop)
    assert ready.wait(10)
    with secured.http("alice") as alice:
        take(alice, "orders/1", "other")
        take(alice, "orders/1", "a")
        alice.delete("/v1/sessions/other/claims/1")
        assert alice.get("/v1/sessions/a/claims/1").status_code == 200
    spying.result(20)
    assert heard == []


def claim(name: str, actor: str, **fields: object) -> dict[str, object]:
    place = {"kind": "lock", "name": name, "mode": "exclusive"}
    return {
        "places": [place],
        "actor": actor,
        "open": {"ttl_ms": 60_000, "owner": "test"},
        **fields,
    }


def test_a_refused_revocation_names_no_hidden_lock(secured: Secured) -> None:
    """A claim for several locks may be visible through one of them only."""
    names = ("orders/1", "billing/secret")
    places = [{"kind": "lock", "name": name, "mode": "exclusive"} for name in names]
    with secured.http("root") as root, secured.http("alice") as alice:
        body = {"places": places, "open": {"ttl_ms": 60_000, "owner": "x"}}
        assert root.put("/v1/sessions/r/claims/1", json=body).status_code == 200
        (seen,) = alice.get("/v1/locks/lock/orders/1").json()["ResourceView"]["holders"]
        assert [place["name"] for place in seen["places"]] == ["orders/1"]
        for refused in (
            alice.post("/v1/sessions/r/claims/1/revocation", json={"by": "", "reason": "x"}),
            alice.post("/v1/revocations", json={"name": "orders/1", "reason": "x"}),
        ):
            assert (refused.status_code, kind_of(refused)) == (403, "forbidden")
            assert "secret" not in refused.text
        assert root.get("/v1/sessions/r/claims/1").status_code == 200


@pytest.mark.parametrize("what", ["revocation", "expulsion"])
def test_a_session_of_another_cannot_be_told_from_none(secured: Secured, what: str) -> None:
    with secured.http("alice") as alice, secured.http("bob") as bob:
        take(alice, "orders/1", "a")
        body = {"by": "", "reason": "x"} if what == "revocation" else {"reason": "x"}
        answers = {bob.post(f"/v1/sessions/{one}/{what}", json=body).text for one in ("a", "none")}
        assert len(answers) == 1
        assert alice.get("/v1/sessions/a/claims/1").status_code == 200


def test_deadlocks_show_only_what_may_be_read(secured: Secured) -> None:
    """Bob is in a cycle that leads through orders/1, which he may not read."""
    with secured.http("bob") as bob, secured.http("root") as root:

        def put(http: httpx.Client, session: str, n: int, name: str, actor: str) -> int:
            path = f"/v1/sessions/{session}/claims/{n}"
            return http.put(path, json=claim(name, actor)).status_code

        assert put(bob, "b", 1, "billing/1", "bob's") == 200
        assert put(root, "r", 1, "billing/2", "first") == 200
        assert put(root, "r", 2, "orders/1", "second") == 200
        assert put(bob, "b", 2, "billing/2", "bob's") == 202
        assert put(root, "r", 3, "orders/1", "first") == 202
        assert put(root, "r", 4, "billing/1", "second") == 202
        (found,) = root.get("/v1/deadlocks").json()["deadlocks"]
        assert sorted(found["actors"]) == ["bob's", "first", "second"]
        assert bob.get("/v1/deadlocks").json()["deadlocks"] == []
        graph = bob.get("/v1/wait-graph").text
        assert "billing/1" in graph
        assert "orders" not in graph
        assert not any(edge["deadlocked"] for edge in json.loads(graph)["edges"])
        witnesses = [
            {"session": session, "n": n, "held": n in held}
            for session, held, last in (("b", (1,), 2), ("r", (1, 2), 4))
            for n in range(1, last + 1)
        ]
        body = {"witnesses": witnesses, "detail": "root waits for orders/1"}
        broken = root.post("/v1/sessions/b/claims/2/break", json=body)
        assert broken.json()["Done"] == {}
        told = bob.get("/v1/sessions/b/claims/2")
        assert told.json()["reply"]["Gone"]["reason"] == "deadlock"
        assert "orders" not in told.text


def test_a_refused_upgrade_does_not_name_the_other(secured: Secured) -> None:
    with secured.http("alice") as alice, secured.http("blind") as blind:
        for http, session in ((alice, "a"), (blind, "x")):
            assert take(http, "orders/1", session, mode="shared").status_code == 200
        upgrade = {"step": 1, "mode": "exclusive"}
        assert alice.put("/v1/sessions/a/claims/1/mode", json=upgrade).status_code == 202
        refused = blind.put("/v1/sessions/x/claims/1/mode", json=upgrade)
        assert refused.json()["reply"]["Refused"]["why"] == "deadlock"
        assert "alice" not in refused.text


def test_a_busy_stream_checks_its_right_too(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wakes that never pause must not postpone the check."""
    monkeypatch.setattr(streams, "CHECK_S", 0.0)
    thread = secured.thread
    checks: list[int] = []

    async def scenario() -> int:
        service = thread.server.service("")
        caller = Caller("bob", Rights([]), Usage(Quotas()))

        def recheck() -> Caller:
            checks.append(1)
            if len(checks) > 3:
                raise forbidden("no longer")
            return caller

        lines = streams.wakes(service, "b", streams.as_line, recheck, thread.server.draining)
        count = 0
        async for _ in lines:
            count += 1
            for hear in service.wakes._hearers.get("b", ()):
                hear(Wake("", "b", 1, "granted"))
            assert count < 100
        return count

    ended = asyncio.run_coroutine_threadsafe(scenario(), thread.loop).result(30)
    assert ended == 3, "the first line, and one per passed check"


def test_rights_and_quotas_can_be_replaced_while_in_use(secured: Secured) -> None:
    """A reload must not forget what a principal uses."""
    policy = Policy(RightsTable(GRANTS), Quotas(sessions=1))
    with secured.http("alice") as alice:
        assert take(alice, "orders/1", "a").status_code == 200
        call = secured.thread.loop.call_soon_threadsafe
        call(secured.thread.server.set_policy, policy)
        assert take(alice, "orders/2", "b").status_code == 429, "it has a session already"
        alice.delete("/v1/sessions/a")
        assert take(alice, "orders/2", "b").status_code == 200


def test_a_withdrawn_right_allows_no_upgrade(secured: Secured) -> None:
    """What a principal holds stays, but only as it is: it may be given up, not extended."""
    less = [grant for grant in GRANTS if grant.principal != "alice"]
    less.append(Grant("alice", "", "other", USE))
    body = {"places": [{"kind": "election", "name": "orders/2", "mode": "exclusive"}]}
    with secured.http("alice") as alice:
        assert take(alice, "orders/1", "a", mode="update").status_code == 200
        assert alice.put("/v1/sessions/a/claims/2", json=body).status_code == 200
        mode, value = "/v1/sessions/a/claims/1/mode", "/v1/sessions/a/claims/2/value"
        for forgets in (False, True):  # a server that was restarted does not know the names
            call = secured.thread.loop.call_soon_threadsafe
            call(secured.thread.server.set_policy, Policy(RightsTable(less)))
            if forgets:
                call(secured.thread.server._usages.of("alice").ended, "a")
            upgrade = {"step": 1, "mode": "exclusive"}
            for refused in (
                alice.put(mode, json=upgrade),
                alice.put(value, json={"value": "x"}),
            ):
                assert (refused.status_code, kind_of(refused)) == (403, "forbidden")
        downgrade = {"step": 2, "mode": "shared"}
        assert alice.put(mode, json=downgrade).json()["Granted"]["mode"] == "shared"
        assert alice.delete("/v1/sessions/a/claims/1").status_code == 200
        call(secured.thread.server.set_policy, Policy(RightsTable(GRANTS)))
        assert alice.put(value, json={"value": "x"}).status_code == 200
