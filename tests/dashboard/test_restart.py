"""A page outlives its server: it says that it is stale, and recovers when the server is back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

import lockfast
from tests.dashboard.conftest import log_in
from tests.servers.lockserver import ServerProcess

Open = Callable[..., Page]


def test_a_killed_server(open_page: Open, tmp_path: Path) -> None:
    """After kill -9 the page says since when it is stale; after the restart it is live again, with
    what happened in between, and still logged in."""
    store = f"sqlite://{tmp_path}/locks.db"
    with (
        ServerProcess(store, tmp_path) as server,
        lockfast.connect(store, owner="worker-7") as client,
        client.lock("orders/1"),
    ):
        page = open_page(server.url)
        log_in(page, server.token)
        expect(page.get_by_role("row").filter(has_text="orders/1")).to_be_visible()
        server.kill()
        stale = page.get_by_role("alert").filter(has_text="Not up to date: no word from the server")
        expect(stale).to_be_visible()
        expect(page.locator("body.stale")).to_be_visible()
        with client.lock("orders/2"):
            expect(page.get_by_role("row").filter(has_text="orders/1")).to_be_visible()
            server.start()
            expect(page.get_by_role("row").filter(has_text="orders/2")).to_be_visible()
            expect(stale).to_be_hidden()
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="orders/2")).to_have_count(0)


def test_a_server_that_hangs(open_page: Open, tmp_path: Path) -> None:
    """A stopped server breaks no connection, but the page notices its silence."""
    import os
    import signal

    with ServerProcess(f"sqlite://{tmp_path}/locks.db", tmp_path, "--insecure-dev") as server:
        page = open_page(server.url)
        page.get_by_text("Live", exact=True).wait_for()
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            expect(page.get_by_text("Not up to date", exact=True)).to_be_visible()
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
