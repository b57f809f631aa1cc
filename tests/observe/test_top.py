"""`lockfast top`, driven by Textual's pilot."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static, TabbedContent

import lockfast
from lockfast.cli.live.app import RevokeScreen, TopApp
from lockfast.cli.live.model import WAITERS, Snapshot, status


@pytest.fixture
def client(tmp_path: Path) -> Iterator[lockfast.Client]:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db", owner="holder") as client:
        yield client


@pytest.fixture
def busy(client: lockfast.Client) -> Iterator[lockfast.Client]:
    """`orders/1` is held and one thread waits for it; `orders/2` and `reports` are held."""
    held = [client.lock(name).acquire() for name in ("orders/1", "orders/2", "reports")]
    over = threading.Event()

    def wait() -> None:
        with client.lock("orders/1"):
            over.set()

    thread = threading.Thread(target=wait)
    thread.start()
    _until(lambda: client.inspect("orders/1").waiting_count == 1)
    yield client
    for lease in held:
        try:
            lease.release()
        except lockfast.LeaseLostError:
            pass
    thread.join()


def _until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


async def _shown(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until, pilot.app.export_screenshot()[:200]
        await pilot.pause(0.02)


def _text(app: TopApp, where: str) -> str:
    return str(app.query_one(where, Static).content)


def _names(app: TopApp) -> list[str]:
    table = app.query_one("#locks", DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def _drive(
    client: lockfast.Client, story: Callable[[TopApp, Pilot[None]], object], size: tuple[int, int]
) -> None:
    async def run() -> None:
        app = TopApp(client, every_s=0.3)
        async with app.run_test(size=size) as pilot:
            await story(app, pilot)  # type: ignore[misc]

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
def test_it_shows_locks_queue_graph_and_sessions(
    busy: lockfast.Client, size: tuple[int, int]
) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: _names(app) == ["orders/1", "orders/2", "reports"])
        assert "3 locks · 1 waiting" in _text(app, "#status")
        detail = _text(app, "#detail-text")
        assert "1 holding, 1 waiting" in detail
        assert "held by holder" in detail
        assert "token" in detail
        assert "waits" in _text(app, "#graph-text")
        await _shown(pilot, lambda: "TTL 30 s" in _text(app, "#sessions-text"))
        table = app.query_one("#locks", DataTable)
        assert table.size.height >= 5
        assert table.virtual_size.width <= size[0]

    _drive(busy, story, size)


def test_keys_sort_filter_pause_and_change_the_pane(busy: lockfast.Client) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: len(_names(app)) == 3)
        await pilot.press("n")
        assert _names(app) == ["orders/1", "orders/2", "reports"]
        await pilot.press("a")
        assert "by age" in _text(app, "#status")
        await pilot.press("slash", *"rep", "enter")
        assert _names(app) == ["reports"]
        assert app.query_one("#filter", Input).value == "rep"
        await pilot.press("p")
        assert "PAUSED" in _text(app, "#status")
        await pilot.press("p", "tab")
        assert app.query_one("#panes", TabbedContent).active == "events"
        await pilot.press("slash", "escape")
        assert len(_names(app)) == 3

    _drive(busy, story, (80, 24))


def test_events_and_contention_come_from_the_watch(busy: lockfast.Client) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: len(_names(app)) == 3)
        await _shown(pilot, lambda: app._feed._watch is not None)
        position = app._feed._watch
        assert position is not None
        await _shown(pilot, lambda: position.position is not None)
        await asyncio.to_thread(lambda: busy.lock("orders/2").try_acquire())
        with pytest.raises(lockfast.AcquireTimeoutError):
            await asyncio.to_thread(busy.lock("orders/2").acquire, timeout=0.05)
        await _shown(pilot, lambda: app._feed.tail.contention(time.time()))
        await pilot.press("c")
        await _shown(pilot, lambda: _names(app)[0] == "orders/2")
        await pilot.press("ctrl+home")
        await _shown(pilot, lambda: "gave_up" in _text(app, "#events-text"))

    _drive(busy, story, (100, 30))


def test_revoke_asks_for_a_reason_and_escape_revokes_nothing(busy: lockfast.Client) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: len(_names(app)) == 3)
        await pilot.press("n", "r")
        assert isinstance(app.screen, RevokeScreen)
        await pilot.press("escape")
        assert busy.inspect("orders/1").holders
        await pilot.press("r", *"stuck", "enter")
        await _shown(pilot, lambda: not busy.inspect("orders/1").waiting_count)

    token = busy.inspect("orders/1").holders[0].token
    _drive(busy, story, (80, 24))
    assert busy.inspect("orders/1").holders == () or (
        busy.inspect("orders/1").holders[0].token != token
    )


def test_an_empty_store_and_a_revoke_without_a_lock(client: lockfast.Client) -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: app._feed.snapshot.at)
        await pilot.press("r")
        assert not isinstance(app.screen, RevokeScreen)
        assert "no lock is chosen" in _text(app, "#detail-text")

    _drive(client, story, (80, 24))


def test_names_cannot_control_the_terminal() -> None:
    async def story(app: TopApp, pilot: Pilot[None]) -> None:
        await _shown(pilot, lambda: _names(app) == ["[bold]a[/bold]"])

    with lockfast.connect("memory://", owner="[red]x") as client, client.lock("[bold]a[/bold]"):
        _drive(client, story, (80, 24))


def test_messages_that_arrive_after_the_screen_was_taken_down(busy: lockfast.Client) -> None:
    """A highlighted row, a key or fresh data may be handled while the program ends."""

    async def run() -> None:
        app = TopApp(busy, every_s=0.3)
        async with app.run_test(size=(80, 24)) as pilot:
            await _shown(pilot, lambda: len(_names(app)) == 3)
        assert not app.screen_stack
        with app._context():  # as in a handler of the app
            app.on_data_table_row_highlighted()
            app.on_resize()
            app.action_order("name")
            app.action_filter()
            app.action_leave_filter()
            app.action_next_pane()
            app.action_pause()
            app._refresh_unless_paused()

    asyncio.run(run())


def test_the_state_of_the_store_comes_before_its_url() -> None:
    """Eighty columns can end within the URL of a cluster."""
    url = "etcd://" + ",".join(f"etcd-{n}.internal.example.org:2379" for n in range(3))
    snapshot = Snapshot(trouble="cannot be reached (Connection refused)")
    shown = status(snapshot, url, WAITERS, "", True)[:80]
    assert shown.startswith("STORE: cannot be reached (Connection refused) · PAUSED · 0 locks")
    shown = status(Snapshot(), url, WAITERS, "", False)
    assert shown == f"0 locks · 0 waiting · 0 sessions · by waiters · {url}"
