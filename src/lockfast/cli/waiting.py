"""The line that `lockfast run` shows at a terminal while it waits."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Final

from lockfast.api.blocking import Client
from lockfast.cli.formatting import columns_of, duration, safe_text
from lockfast.cli.streams import write_err
from lockfast.cli.terminal import Terminal
from lockfast.errors import LockfastError
from lockfast.flow.admin import LockInfo

QUIET_S: Final = 1.0
"""Waits shorter than this show nothing."""
REFRESH_S: Final = 1.0
INSPECT_EVERY_S: Final = 3.0
"""How often the line asks the store, for a user at a terminal; waiting needs no polling."""


class WaitingLine:
    """Shows the holder, how long it has held, our position and our wait, while its block runs.

    Nothing is shown unless standard error is a terminal and we are in its foreground.
    """

    def __init__(self, client: Client, name: str, terminal: Terminal | None) -> None:
        self._client = client
        self._name = name
        self._terminal = terminal
        self._started_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockfast-waiting", daemon=True)
        self._shown = False

    def __enter__(self) -> None:
        smart = os.environ.get("TERM", "dumb") != "dumb"
        if self._terminal is not None and sys.stderr.isatty() and smart:
            self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            # Bounded: it may be in the middle of a request to a store that does not answer.
            self._thread.join(0.5)
        if self._shown:
            write_err("\r\x1b[K")

    def _run(self) -> None:
        if self._ended.wait(QUIET_S):
            return
        lock: LockInfo | None = None
        inspected_s = -INSPECT_EVERY_S
        while not self._ended.is_set():
            now_s = time.monotonic()
            if now_s - inspected_s >= INSPECT_EVERY_S:
                try:
                    lock = self._client.inspect(self._name)
                except LockfastError:
                    lock = None  # acquire() reports it if it lasts
                inspected_s = now_s
            self._show(lock, now_s - inspected_s)
            self._ended.wait(REFRESH_S)

    def _show(self, lock: LockInfo | None, age_s: float) -> None:
        if self._ended.is_set() or self._terminal is None or not self._terminal.is_ours():
            return
        line = waiting_text(
            self._name, lock, age_s, time.monotonic() - self._started_s, self._client.owner
        )
        self._shown = True
        # Leave room for the ^C that the terminal may echo: on a second line it would stay.
        write_err(f"\r\x1b[K{_cut(line, _columns() - 3)}")


def waiting_text(
    name: str, lock: LockInfo | None, age_s: float, waited_s: float, owner: str
) -> str:
    """Return, for example, "waiting 12 s for 'a', position 3 of 7, held for 2 min 05 s by alice".

    The holder comes last: it is the longest part, and a narrow terminal cuts the end.
    """
    text = f"waiting {duration(waited_s)} for {name!r}"
    if lock is None:
        return f"{text}; the store does not answer"
    positions = [at for at, claim in enumerate(lock.waiting, 1) if claim.owner == owner]
    if positions:
        text += f", position {positions[0]} of {lock.waiting_count}"
    if lock.holders:
        first = lock.holders[0]
        more = f"{lock.holder_count - 1} more and " if lock.holder_count > 1 else ""
        text += f", held for {duration(first.seconds + age_s)} by {more}{first.owner}"
    elif lock.closed_for > age_s:
        text += f", closed for another {duration(lock.closed_for - age_s)}"
    return text


def _columns() -> int:
    """Return the width of the terminal; 80 if the terminal reports 0."""
    return os.get_terminal_size(2).columns or 80


def _cut(line: str, columns: int) -> str:
    line = safe_text(line)
    if columns_of(line) <= columns:
        return line
    while line and columns_of(line) > columns - 1:
        line = line[:-1]
    return f"{line}…"
