"""The screen of `lockfast top`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static, TabbedContent, TabPane
from textual.widgets.data_table import RowDoesNotExist

from lockfast.api.blocking import Client
from lockfast.cli.formatting import safe_text
from lockfast.cli.live import model
from lockfast.cli.live.feed import Feed
from lockfast.errors import LockfastError
from lockfast.flow.admin import LockInfo


class RevokeScreen(ModalScreen[str]):
    """Asks for the reason; an empty answer or Escape revokes nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, lock: LockInfo) -> None:
        super().__init__()
        self._lock = lock

    def compose(self) -> ComposeResult:
        holders = ", ".join(claim.owner for claim in self._lock.holders[:3]) or "nobody"
        question = (
            f"Revoke {model.title(self._lock)} from {holders}?\n"
            "The holder may go on writing until it notices; only a guard refuses that.\n"
            "Type the reason and press Enter, or press Escape."
        )
        with Vertical(id="revoke"):
            yield Label(Text(safe_lines(question)))
            yield Input(placeholder="reason", id="reason")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        _ = self.dismiss(event.value.strip())

    def action_cancel(self) -> None:
        _ = self.dismiss("")


class TopApp(App[None]):
    """A table of locks, and panes about the selected one."""

    CSS = """
    #status { height: 1; background: $primary; color: $text; padding: 0 1; }
    #locks { height: 1fr; }
    #panes { height: 1fr; }
    #filter { display: none; height: 3; }
    #filter.shown { display: block; }
    TabPane { padding: 0 1; }
    RevokeScreen { align: center middle; }
    #revoke Label { width: 100%; }
    #revoke { width: 74; height: auto; border: thick $error; background: $surface; padding: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "order('waiters')", "Waits"),
        Binding("a", "order('age')", "Age"),
        Binding("c", "order('contention')", "Busy"),
        Binding("n", "order('name')", "Name"),
        Binding("slash", "filter", "Filter"),
        Binding("p", "pause", "Pause"),
        Binding("r", "revoke", "Revoke"),
        Binding("tab", "next_pane", "Pane", priority=True),
        Binding("q", "quit", "Quit"),
        Binding("escape", "leave_filter", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False
    PANES: ClassVar = ("detail", "events", "graph", "sessions")

    def __init__(self, client: Client, prefix: str = "", every_s: float = 1.0) -> None:
        super().__init__()
        self._client = client
        self._feed = Feed(client, prefix, every_s, self._changed)
        self._order = model.WAITERS
        self._pattern = ""
        self._paused = False
        self._rows: dict[str, LockInfo] = {}
        # Kept, not looked up: messages may still arrive while the screen is being taken down.
        self._status = Static(id="status")
        self._table: DataTable[Text] = DataTable(id="locks", cursor_type="row", zebra_stripes=True)
        self._filter = Input(placeholder="part of a name", id="filter")
        self._panes = TabbedContent(id="panes")
        self._texts = {name: Static(id=f"{name}-text") for name in self.PANES}

    # ── layout ───────────────────────────────────────────────────────────────────────

    def compose(self) -> ComposeResult:
        yield self._status
        yield self._table
        yield self._filter
        with self._panes:
            for name, text in self._texts.items():
                with TabPane(name.capitalize(), id=name), VerticalScroll():
                    yield text
        yield Footer()

    def on_mount(self) -> None:
        for title in model.HEADER:
            self._table.add_column(title, key=title)
        self._table.focus()
        self._show()
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()

    # ── data ─────────────────────────────────────────────────────────────────────────

    def _changed(self) -> None:
        with suppress(RuntimeError):  # the app has just ended
            self.call_from_thread(self._refresh_unless_paused)

    def _refresh_unless_paused(self) -> None:
        if not self._paused:
            self._show()

    def _show(self) -> None:
        snapshot, tail = self._feed.snapshot, self._feed.tail
        status = model.status(snapshot, self._client.url, self._order, self._pattern, self._paused)
        self._status.update(Text(safe_text(status), no_wrap=True))
        contention = tail.contention(snapshot.at)
        self._fill(model.rows(snapshot.locks, contention, self._order, self._pattern))
        self._show_panes()

    def _fill(self, rows: list[model.Row]) -> None:
        """Replace the rows and keep the selection."""
        table = self._table
        chosen = self._chosen_key()
        table.clear()
        self._rows = {row.key: row.lock for row in rows}
        widths = _widths(self.size.width)
        for row in rows:
            cells = [Text(_cut(cell, width)) for cell, width in zip(row.cells, widths, strict=True)]
            if row.lock.waiting_count:
                cells[3].stylize("bold yellow")
            table.add_row(*cells, key=row.key)
        if chosen in self._rows:
            with suppress(RowDoesNotExist):
                table.move_cursor(row=table.get_row_index(chosen))

    def _chosen_key(self) -> str:
        table = self._table
        if not table.row_count:
            return ""
        key = table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value
        return key or ""

    def _chosen(self) -> LockInfo | None:
        return self._rows.get(self._chosen_key())

    def _show_panes(self) -> None:
        snapshot, lock = self._feed.snapshot, self._chosen()
        events = [self._feed.no_events] if self._feed.no_events else None
        self._write("detail", model.detail_lines(lock))
        self._write("events", events or model.event_lines(self._feed.tail.of(lock)))
        self._write("graph", model.graph_lines(snapshot.graph))
        self._write("sessions", model.session_lines(snapshot.sessions))

    def _write(self, pane: str, lines: Iterable[str]) -> None:
        text = "\n".join(map(safe_text, lines))
        self._texts[pane].update(Text(text))

    def on_data_table_row_highlighted(self) -> None:
        self._show_panes()

    def on_resize(self) -> None:
        self._show()

    # ── keys ─────────────────────────────────────────────────────────────────────────

    def action_order(self, order: str) -> None:
        self._order = order
        self._show()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._show()

    def action_next_pane(self) -> None:
        panes = self._panes
        if not panes.is_attached:
            return  # the screen was taken down
        at = self.PANES.index(panes.active) if panes.active in self.PANES else -1
        panes.active = self.PANES[(at + 1) % len(self.PANES)]

    def action_filter(self) -> None:
        self._filter.add_class("shown")
        self._filter.focus()

    def action_leave_filter(self) -> None:
        self._filter.value = ""
        self._filter.remove_class("shown")
        self._table.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._pattern = event.value
            self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            event.input.remove_class("shown")
            self._table.focus()

    def action_revoke(self) -> None:
        lock = self._chosen()
        if lock is None or not lock.holders:
            self.notify("choose a lock that is held", severity="warning")
            return

        def answered(reason: str | None) -> None:
            if reason:
                self._revoke(lock, reason)
            else:
                self.notify("nothing was revoked")

        _ = self.push_screen(RevokeScreen(lock), answered)

    @work(thread=True)
    def _revoke(self, lock: LockInfo, reason: str) -> None:
        try:
            count = self._client.revoke(lock.name, kind=lock.kind, reason=reason)
        except (LockfastError, ValueError) as error:
            self.call_from_thread(
                self.notify, safe_text(str(error)), severity="error", markup=False
            )
            return
        told = f"revoked {safe_text(model.title(lock))} from {count}"
        self.call_from_thread(self.notify, told, markup=False)
        self._feed.refresh()


def safe_lines(text: str) -> str:
    return "\n".join(map(safe_text, text.split("\n")))


def _widths(total: int) -> tuple[int, ...]:
    """Return the column widths: numbers get what they need, texts share the rest."""
    numbers = (13, 8, 10)
    rest = max(20, total - sum(numbers) - 2 * len(model.HEADER) - 1)
    name = rest * 55 // 100
    return name, rest - name, *numbers


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
