"""What the page does and hides by rights: revoking, missing rights, withdrawn rights."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import lockfast
from lockfast.server.config import Policy
from lockfast.server.dashboard import stream
from lockfast.server.rights import READ, Grant, RightsTable
from tests.dashboard.conftest import Secured, log_in

Open = Callable[..., Page]


def client_of(secured: Secured, principal: str, owner: str) -> lockfast.Client:
    return lockfast.connect(secured.url_of(principal), owner=owner)


def test_revoke_with_a_reason(secured: Secured, open_page: Open) -> None:
    """The holder is told who revoked its lease and why, and the page shows it too."""
    with client_of(secured, "alice", "worker-7") as client:
        lease = client.lock("orders/42").acquire()
        page = open_page(secured.base)
        log_in(page, secured.token_of["root"])
        page.get_by_role("button", name="Revoke the lease on orders/42").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("worker-7")
        expect(dialog).to_contain_text(str(lease.token))
        dialog.get_by_role("button", name="Revoke this lease").click()
        expect(dialog).to_be_visible()  # a reason is required
        dialog.get_by_label("Reason").fill("the host is <being> replaced")
        dialog.get_by_role("button", name="Revoke this lease").click()
        expect(page.get_by_text("Revoked. The holder is told")).to_be_visible()
        expect(page.get_by_text("No lock is held, and nobody waits.")).to_be_visible()
        assert lease.lost.wait(20)
        with pytest.raises(lockfast.LeaseLostError, match="the host is <being> replaced"):
            lease.check()
        page.goto(f"{secured.base}/#/lock/lock/orders%2F42")
        row = page.get_by_role("region", name="Revocations").get_by_role("row").nth(1)
        expect(row).to_contain_text("root")
        expect(row).to_contain_text("the host is <being> replaced")
        expect(row).to_contain_text(str(lease.token))
    audit = [json.loads(line) for line in secured.audit.read_text().splitlines()]
    assert [one["principal"] for one in audit if one["what"] == "revoked"] == ["root"]


def test_cancelling_revokes_nothing(secured: Secured, open_page: Open) -> None:
    with client_of(secured, "alice", "worker-7") as client, client.lock("orders/42") as lease:
        page = open_page(secured.base)
        log_in(page, secured.token_of["root"])
        page.get_by_role("button", name="Revoke the lease on orders/42").click()
        page.get_by_label("Reason").fill("a mistake")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Revoke the lease on orders/42").click()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        lease.check()
        assert client.inspect("orders/42").holder_count == 1


def test_without_the_right_to_revoke(secured: Secured, open_page: Open) -> None:
    """A reader sees no button, and the API refuses the request that it would send."""
    with client_of(secured, "alice", "worker-7") as client, client.lock("orders/42") as lease:
        page = open_page(secured.base)
        log_in(page, secured.token_of["bob"])
        expect(page.get_by_role("row").filter(has_text="orders/42")).to_be_visible()
        expect(page.get_by_role("button", name="Revoke")).to_have_count(0)
        page.goto(f"{secured.base}/#/lock/lock/orders%2F42")
        expect(page.get_by_text("Held by worker-7")).to_be_visible()
        expect(page.get_by_role("button", name="Revoke")).to_have_count(0)
        holder = client.inspect("orders/42").holders[0]
        path = f"/v1/sessions/{holder.session}/claims/{holder.n}/revocation"
        said = page.evaluate(
            """async (path) => {
                const { api } = await import("/dashboard/static/api.js");
                const body = { by: "bob", reason: "because" };
                const sent = api(path, { method: "POST", body });
                return sent.then(() => "done", (error) => error.status);
            }""",
            path,
        )
        assert said == 403
        lease.check()


def test_what_may_not_be_read_is_not_on_the_page(secured: Secured, open_page: Open) -> None:
    """Alice sees orders only: no other lock, event, session, figure or wait of others."""
    heard: list[str] = []
    with client_of(secured, "root", "hq-host") as client, client.lock("payroll/secret"):
        page = open_page("about:blank")
        page.on("response", lambda response: heard.append(response.url))
        page.goto(secured.base)
        log_in(page, secured.token_of["alice"])
        with client.lock("orders/1"), client.lock("payroll/other"):
            expect(page.get_by_role("row").filter(has_text="orders/1")).to_be_visible()
        expect(page.get_by_text("No lock is held, and nobody waits.")).to_be_visible()
        for view in ("locks", "waiting", "graph", "sessions", "events"):
            page.goto(f"{secured.base}/#/{view}")
            expect(page.locator(f"main.view-{view}")).to_be_visible()
            assert "payroll" not in page.content(), view
        known = page.evaluate(
            """async () => {
                const { picture } = await import("/dashboard/static/picture.js");
                const maps = [picture.locks, picture.sessions, picture.leases, picture.figures];
                const parts = maps.map((map) => [...map.values(), ...map.keys()]);
                return JSON.stringify([...parts, picture.events, picture.hello]);
            }"""
        )
        assert "orders/1" in known
        assert "payroll" not in known
        assert "memory://" not in known
        # One grant of orders/1: those of other locks are not counted.
        figures = json.loads(known)[3]
        assert sum(row[1] for row in figures if isinstance(row, list)) == 1
        page.goto(f"{secured.base}/#/lock/lock/payroll%2Fsecret")
        expect(page.get_by_text("You have no right to read this lock.")).to_be_visible()


def test_another_namespace(secured: Secured, open_page: Open) -> None:
    """`?namespace=` shows another namespace to principals with rights there, and to no others."""
    url = f"{secured.url_of('root')}&namespace=team"
    with lockfast.connect(url, owner="host") as client, client.lock("orders/team"):
        page = open_page(f"{secured.base}/?namespace=team")
        log_in(page, secured.token_of["root"])
        expect(page.get_by_role("row").filter(has_text="orders/team")).to_be_visible()
        page.goto(secured.base)
        expect(page.get_by_text("No lock is held, and nobody waits.")).to_be_visible()
        other = open_page(f"{secured.base}/?namespace=team")
        other.get_by_label("Token").fill(secured.token_of["alice"])
        other.get_by_role("button", name="Log in").click()
        expect(other.get_by_text("You have no rights on this server.")).to_be_visible()


def test_rights_that_are_taken_away(
    secured: Secured, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open stream shows less when rights shrink, and ends when there are none."""
    monkeypatch.setattr(stream, "CHECK_S", 0.3)
    with client_of(secured, "root", "host") as client:
        with client.lock("orders/1"), client.lock("orders/eu/2"):
            page = open_page(secured.base)
            log_in(page, secured.token_of["alice"])
            rows = page.get_by_role("table", name="Locks in use").get_by_role("row")
            expect(rows).to_have_count(3)
            expect(page.get_by_role("button", name="Revoke the lease")).to_have_count(2)
            less = [Grant("alice", "", "orders/eu", frozenset({READ}))]
            change(secured, [*less, Grant("root", "*", "", frozenset({"admin"}))])
            expect(rows).to_have_count(2)
            expect(page.get_by_role("button", name="Revoke the lease")).to_have_count(0)
            change(secured, [Grant("root", "*", "", frozenset({"admin"}))])
            expect(
                page.get_by_text("Your login has ended, or your rights have changed.")
            ).to_be_visible()
            assert "orders/eu/2" not in page.content()


def change(secured: Secured, grants: list[Grant]) -> None:
    server = secured.thread
    policy = Policy(RightsTable(grants))
    server.loop.call_soon_threadsafe(server.server.set_policy, policy)


def test_a_revoked_token_ends_the_login(
    secured: Secured, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CHECK_S", 0.3)
    page = open_page(secured.base)
    log_in(page, secured.token_of["alice"])
    for token in secured.tokens.all():
        if token.principal == "alice":
            secured.tokens.revoke(token.id)
    expect(page.get_by_text("Your login has ended, or your rights have changed.")).to_be_visible()
