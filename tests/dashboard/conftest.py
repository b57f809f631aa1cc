"""A browser, and a server with principals: alice has orders, bob may only read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from lockfast.server.config import Config, Policy
from lockfast.server.rights import ACQUIRE, ADMIN, READ, REVOKE, Grant, RightsTable
from lockfast.server.tokens import TokenFile, write_private
from tests.dashboard import chromium
from tests.servers.lockserver import ServerThread

GRANTS = [
    Grant("alice", "", "orders", frozenset({READ, ACQUIRE, REVOKE})),
    Grant("bob", "", "orders", frozenset({READ})),
    Grant("root", "*", "", frozenset({ADMIN})),
]
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser per file: while it runs, its thread has a running event loop."""
    home = chromium.install()
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=str(home / "chromium"),
            args=list(chromium.OPTIONS),
            env=dict(chromium.environment(home)),
        )
        yield made
        made.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page that must not log an error or request anything from another host."""
    contexts = []
    errors: list[str] = []

    def opened(url: str, **options: Any) -> Page:
        context = browser.new_context(
            **{"locale": "en-US", "viewport": {"width": 1280, "height": 800}, **options}
        )
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: _note(said, errors))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors


def _note(said: Any, errors: list[str]) -> None:
    """Fail on logged errors, except for requests that a test lets fail."""
    expected = "Failed to load resource" in said.text
    if said.type in ("error", "warning") and not expected:
        errors.append(said.text)


class Secured:
    """A server with principals and their tokens."""

    def __init__(self, directory: Path) -> None:
        self.audit = directory / "audit.jsonl"
        self.tokens = TokenFile(str(directory / "tokens.json"))
        self.token_of = {name: self.tokens.create(name) for name in ("alice", "bob", "root")}
        config = Config(Policy(RightsTable(GRANTS)), audit_log=str(self.audit))
        self.thread = ServerThread(f"memory://{directory}", config, self.tokens)

        self._directory = directory

    @property
    def base(self) -> str:
        return self.thread.base

    def url_of(self, principal: str) -> str:
        """Return the URL with which a client of this principal connects."""
        path = self._directory / f"{principal}.token"
        write_private(str(path), self.token_of[principal])
        return f"{self.base}?token_file={path}"


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    with made.thread:
        yield made


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("Live", exact=True).wait_for()
