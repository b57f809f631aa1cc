"""Every view in a real browser: contents, keyboard, 360 px, dark mode, accessibility."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import lockfast
from tests.dashboard import chromium
from tests.dashboard.conftest import WAIT_MS
from tests.servers.lockserver import ServerThread

Open = Callable[..., Page]
VIEWS = ("locks", "waiting", "graph", "trends", "sessions", "events", "lock/lock/nightly")
TWO_SECONDS_OR_MORE = re.compile(r"^([2-9]|\d\d+) s$")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "safe\u202ednuos",
    "\u05d0\u05d1\u05d2 <b>&amp;",
    "x" * 512,
)


class World:
    """A server over a memory store, with holders, a queue and a deadlock."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self._stack = stack
        self._url = url
        self.server = stack.enter_context(ServerThread(url))
        self.base = self.server.base

    def client(self, owner: str, **options: Any) -> lockfast.Client:
        return self._stack.enter_context(lockfast.connect(self._url, owner=owner, **options))

    def hold(self, lease: lockfast.Lease) -> lockfast.Lease:
        """Keep a lease until the end of the test."""
        self._stack.callback(suppressed, lease.release)
        return lease

    def wait_in_line(self, client: lockfast.Client, name: str) -> threading.Thread:
        """Start a thread that waits for a lock, and return once it is queued."""
        before = client.inspect(name).waiting_count

        def acquire() -> None:
            try:
                with client.lock(name):
                    pass
            except lockfast.LockfastError:
                pass  # its client was closed while it waited

        thread = threading.Thread(target=acquire, daemon=True)
        thread.start()
        for _ in range(2000):
            if client.inspect(name).waiting_count > before:
                return thread
            thread.join(0.005)
        raise AssertionError(f"nobody waits for {name}")


def suppressed(release: Callable[[], Any]) -> None:
    with suppress(lockfast.LockfastError):
        release()


@contextmanager
def a_world(directory: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack, f"memory://{directory}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with a_world(tmp_path) as made:
        yield made


@pytest.fixture
def busy(world: World) -> World:
    """`nightly` is held by batch and waited for by web; accounts/1 and 2 are deadlocked."""
    world.hold(world.client("batch", metadata="build 7").lock("nightly").acquire())
    world.wait_in_line(world.client("web"), "nightly")
    world.hold(world.client("api").semaphore("payments", limit=5).acquire(permits=2))
    one, two = (world.client(name, deadlock_after=3600) for name in ("left", "right"))
    ready = threading.Barrier(2)
    started = threading.Barrier(3)

    def cross(client: lockfast.Client, first: str, second: str) -> None:
        try:
            with client.lock(first):
                ready.wait(10)
                started.wait(10)
                with client.lock(second):
                    pass
        except lockfast.LockfastError:
            pass  # its client was closed while it waited

    for client, first, second in (
        (one, "accounts/1", "accounts/2"),
        (two, "accounts/2", "accounts/1"),
    ):
        threading.Thread(target=cross, args=(client, first, second), daemon=True).start()
    started.wait(10)
    for _ in range(2000):
        if one.deadlocks():
            return world
    raise AssertionError("there is no deadlock")


def go(page: Page, view: str) -> None:
    page.evaluate("address => { location.hash = address }", f"#/{view}")
    page.locator(f"main.view-{view.partition('/')[0]}").wait_for()


def test_search_and_prefixes(world: World, open_page: Open) -> None:
    """Search looks at names and holders; a prefix shows what is below it."""
    client, other = world.client("web-1"), world.client("batch-9")
    for name in ("orders/eu/1", "orders/us/2", "invoices/3"):
        world.hold(client.lock(name).acquire())
    world.hold(other.lock("nightly").acquire())
    page = open_page(world.base)
    rows = page.get_by_role("table", name="Locks in use").get_by_role("row")
    expect(rows).to_have_count(5)  # with the header
    search = page.get_by_role("searchbox", name="Search locks and holders")
    search.fill("ORDERS")
    expect(rows).to_have_count(3)
    search.fill("batch-9")
    expect(rows.nth(1)).to_contain_text("nightly")
    expect(page.get_by_text("1 of 4 locks")).to_be_visible()
    search.fill("no such lock")
    expect(page.get_by_text("No lock matches.")).to_be_visible()
    search.fill("")
    prefixes = page.get_by_role("complementary", name="Prefixes")
    prefixes.get_by_role("button", name="orders 2").click()
    expect(rows).to_have_count(3)
    prefixes.get_by_role("button", name="Prefixes below orders").click()
    prefixes.get_by_role("button", name="us 1").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("orders/us/2")


def test_waiters(busy: World, open_page: Open) -> None:
    """A waiting claim shows its position, how long it has waited, and which claims block it."""
    page = open_page(f"{busy.base}/#/waiting")
    row = page.get_by_role("row").filter(has_text="nightly")
    expect(row).to_contain_text("1 of 1")
    expect(row.locator(".owner")).to_have_text("web")
    expect(row.locator(".holder")).to_have_text("batch")
    expect(row.locator(".since")).to_have_text(TWO_SECONDS_OR_MORE)
    expect(page.locator(".figure.waiting dd")).to_have_text("3")


def test_wait_graph(busy: World, open_page: Open) -> None:
    """The wait graph shows the deadlock as a red cycle, and says so in words."""
    page = open_page(f"{busy.base}/#/graph")
    expect(page.get_by_role("status").filter(has_text="Deadlock: 2 actors")).to_be_visible()
    expect(page.locator("svg .node.stuck")).to_have_count(4)
    expect(page.locator("svg .node:not(.stuck)")).to_have_count(3)
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("cell", name="batch (holds it)")).to_be_visible()
    page.locator("svg a").filter(has_text="nightly").click()
    expect(page.get_by_role("heading", name="nightly")).to_be_visible()


def test_sessions(busy: World, open_page: Open) -> None:
    page = open_page(f"{busy.base}/#/sessions")
    row = page.get_by_role("row").filter(has_text="batch")
    expect(row.locator(".metadata")).to_have_text("build 7")
    expect(row.locator(".claims")).to_have_text("1")
    expect(row.locator(".lease-left")).to_contain_text(" s")


def test_events_and_pause(world: World, open_page: Open) -> None:
    """Events appear as they happen, newest first; a paused list does not change."""
    client = world.client("web-1")
    page = open_page(f"{world.base}/#/events")
    expect(page.get_by_text("Nothing has happened yet.")).to_be_visible()
    lease = client.lock("orders/1").acquire()
    rows = page.get_by_role("table", name="Events, newest first").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("granted")
    lease.release()
    expect(rows.nth(1)).to_contain_text("released")
    page.get_by_role("button", name="Pause").click()
    world.hold(client.lock("orders/2").acquire())
    expect(page.locator(".figure.held dd")).to_have_text("1")
    expect(rows).to_have_count(3)
    page.get_by_role("button", name="Continue").click()
    expect(rows.nth(1)).to_contain_text("orders/2")


def test_trends(world: World, open_page: Open) -> None:
    """The charts include events from before the page was opened."""
    client = world.client("web-1")
    client.watch("").close()
    for n in range(20):
        with client.lock(f"orders/{n}"):
            pass
    page = open_page(f"{world.base}/#/trends")
    expect(page.locator(".uplot")).to_have_count(4)
    # A slot is drawn when it is complete.
    chart = page.get_by_role("img", name="Grants")
    expect(chart.locator(".chart-now")).to_have_text("grants 2.0/s")


def test_one_lock(busy: World, open_page: Open) -> None:
    """The page of a lock has its holder, its queue, its timeline, metadata and events."""
    page = open_page(f"{busy.base}/#/lock/lock/nightly")
    expect(page.get_by_text("Held by batch; 1 claim waiting.")).to_be_visible()
    holders = page.get_by_role("region", name="Holders")
    token = busy.client("reader").inspect("nightly").holders[0].token
    expect(holders.get_by_role("row").nth(1)).to_contain_text(str(token))
    expect(holders.get_by_role("row").nth(1)).to_contain_text("build 7")
    line = page.get_by_role("region", name="Queue")
    expect(line.get_by_role("row").nth(1)).to_contain_text("web")
    expect(page.get_by_role("img", name="timeline of nightly")).to_be_visible()
    page.goto(f"{busy.base}/#/lock/lock/unused")
    expect(page.get_by_text("Free: nobody holds it, and nobody waits.")).to_be_visible()


def test_keyboard_only(busy: World, open_page: Open) -> None:
    """Find a lock, open its page, revoke it and come back, without a mouse."""
    page = open_page(busy.base)
    expect(page.get_by_role("row").filter(has_text="nightly")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("a")  # accounts/1, accounts/2, and payments
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Lock", exact=True)).to_be_focused()
    for _ in range(5):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="accounts/1")).to_be_focused()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="accounts/2")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="accounts/2")).to_be_visible()
    button = page.get_by_role("button", name="Revoke…")
    expect(button).to_be_visible()
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Revoke…":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Reason")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_360_pixels(busy: World, open_page: Open, scheme: str) -> None:
    """On the narrowest screen no view is wider than the window."""
    page = open_page(busy.base, viewport={"width": 360, "height": 640}, color_scheme=scheme)
    expect(page.get_by_role("row").filter(has_text="nightly")).to_be_visible()
    for view in VIEWS:
        go(page, view)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (view, wide)


def test_dark_and_light(world: World, open_page: Open) -> None:
    """The page follows the system, and a choice is kept."""
    background = "getComputedStyle(document.body).backgroundColor"
    page = open_page(world.base, color_scheme="dark")
    page.get_by_text("Live", exact=True).wait_for()
    assert page.evaluate(background) == "rgb(18, 22, 28)"
    page.get_by_role("button", name="Auto theme; change it").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.reload()
    page.get_by_text("Live", exact=True).wait_for()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.get_by_role("button", name="Light theme; change it").click()
    assert page.evaluate(background) == "rgb(18, 22, 28)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(busy: World, open_page: Open, scheme: str) -> None:
    """axe-core finds no serious violation on any view, nor in the dialog."""
    page = open_page(busy.base, color_scheme=scheme, bypass_csp=True)
    page.add_script_tag(path=str(chromium.HOME / "axe.min.js"))
    expect(page.get_by_role("row").filter(has_text="nightly")).to_be_visible()
    for view in VIEWS:
        go(page, view)
        if view.startswith("lock/"):
            page.get_by_text("Held by batch").wait_for()
        assert serious(page) == [], view
    page.get_by_role("button", name="Revoke…").first.click()
    assert serious(page) == []


def serious(page: Page) -> list[str]:
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['impact']} {one['id']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_text(world: World, open_page: Open, name: str) -> None:
    """Markup, bidirectional overrides and 512 bytes in names, owners, metadata, values and reasons
    are shown as text, and none of it becomes an element."""
    client = world.client(f"owner {name}"[:150], metadata=f"metadata {name}")
    world.hold(client.lock(name).acquire())
    world.wait_in_line(world.client(f"waiter {name}"[:150]), name)
    page = open_page(world.base, viewport={"width": 1280, "height": 700})
    expect(page.get_by_role("row").filter(has_text=shown(name)[:30])).to_be_visible()
    assert "\u202e" not in page.locator("body").inner_text()
    for view in (*VIEWS[:-1], "lock/lock/" + page.evaluate("encodeURIComponent", name)):
        go(page, view)
        expect(page.locator("img:not([role])")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, view
    expect(page.get_by_role("heading", level=1).locator("bdi")).to_have_text(shown(name))
    expect(page.get_by_text(f"metadata {shown(name)}")).to_be_visible()
    assert page.title() != "owned"


def shown(text: str) -> str:
    return text.replace("\u202e", "⟨U+202E⟩")


def test_offline(world: World, open_page: Open) -> None:
    """The page requests nothing from any other server."""
    page = open_page("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(world.base)
    page.get_by_text("Live", exact=True).wait_for()
    for view in VIEWS:
        go(page, view)
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(world.base)] == []


def test_a_browser_without_a_locale(world: World, browser: Browser) -> None:
    """It reports a language that Intl does not accept; the page was blank."""
    context = browser.new_context()
    language = "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', %s})"
    context.add_init_script(language % "configurable: true")
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"{world.base}/#/trends")
    expect(page.get_by_role("link", name="Trends")).to_be_visible()
    expect(page.locator(".uplot").first).to_be_visible()
    context.close()
