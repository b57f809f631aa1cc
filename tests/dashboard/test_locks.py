"""The list of locks in a real browser: live, and after a login."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

import lockfast
from tests.dashboard.conftest import Secured, log_in
from tests.servers.lockserver import ServerThread

Open = Callable[..., Page]


def test_a_grant_and_a_release_appear(open_page: Open, tmp_path: Path) -> None:
    """A lock appears with its holder and countdown when it is granted, and goes on release."""
    with (
        ServerThread(f"memory://{tmp_path}") as server,
        lockfast.connect(server.url(), owner="worker-7") as client,
    ):
        page = open_page(server.base)
        expect(page.get_by_text("--insecure-dev")).to_be_visible()
        expect(page.get_by_text("No lock is held, and nobody waits.")).to_be_visible()
        lease = client.lock("orders/42").acquire()
        row = page.get_by_role("row").filter(has_text="orders/42")
        expect(row).to_contain_text("worker-7")
        expect(row).to_contain_text(str(lease.token))
        expect(row.locator(".lease-left")).to_have_text(re.compile(r"^[12]\d s$"))
        lease.release()
        expect(row).to_have_count(0)


def test_login(open_page: Open, secured: Secured) -> None:
    """The page shows nothing before the login, and a wrong token is refused."""
    page = open_page(secured.base)
    page.get_by_label("Token").fill("lf_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("This token is not valid here.")).to_be_visible()
    log_in(page, secured.token_of["alice"])
    expect(page.get_by_text("alice", exact=True)).to_be_visible()
    cookie = page.context.cookies()[0]
    assert cookie["name"] == "lockfast-loopback"
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""
    page.reload()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.context.cookies() == []
