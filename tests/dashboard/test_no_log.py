"""Without a log of events, as on a majority of nodes, the page claims nothing about the past."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

import lockfast
from lockfast.ports import Capabilities
from lockfast.stores.memory import MemoryStore
from tests.api.worlds import fresh_url
from tests.servers.lockserver import ServerThread

NO_LOG = "this store keeps no log of events"


def test_what_is_not_known_is_not_claimed(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", Capabilities(watch=False))
    url = fresh_url()
    with ServerThread(url) as server, lockfast.connect(url) as client, client.lock("nightly"):
        page = open_page(f"{server.base}/#/events")
        expect(page.get_by_text(NO_LOG)).to_be_visible()
        page.goto(f"{server.base}/#/trends")
        expect(page.get_by_text(NO_LOG)).to_be_visible()
        expect(page.locator(".charts")).to_be_hidden()
        page.goto(f"{server.base}/#/lock/lock/nightly")
        expect(page.get_by_text("Nobody waits.", exact=True)).to_be_visible()
        for title in ("Last hour", "Revocations", "Events"):
            section = page.locator("section").filter(has=page.get_by_role("heading", name=title))
            expect(section).to_contain_text(NO_LOG)
        assert "Nobody has revoked" not in page.inner_text("main")
