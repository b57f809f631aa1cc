"""Text for people: escaping for terminals, tables, durations, times.

Text from a store, a history file or another user may contain anything. It reaches the terminal only
through `write_line` and `write_error`, which escape it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from lockfast.cli.streams import write_err, write_out

NARROWEST_COLUMN: Final = 8
"""A column of a table is never cut to less than this."""
WIDE: Final = 100
"""Terminals narrower than this are not shown the least important columns."""
FREE_TEXT: Final = frozenset({"NAME", "HOLDER", "OWNER", "MODE", "STATE", "METADATA"})
"""Columns that may be cut. Ids, tokens and numbers are useless unless complete."""


def safe_text(text: str) -> str:
    """Return `text` with every character escaped that could control a terminal or reorder a line.

    Escape sequences, newlines, bidirectional overrides, zero-width characters, lone surrogates.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


class ColouredLine(str):
    """A line that is already escaped and contains colours."""


def use_colour() -> bool:
    """Return whether standard output is a terminal that wants colours (https://no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return wanted and sys.stdout.isatty()


def coloured(text: str, code: str) -> str:
    """Return `text`, which must be escaped, in a terminal colour; "" is no colour."""
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


def write_line(line: str = "", *, flush: bool = False) -> None:
    """Write one line to standard output, escaped."""
    write_out(f"{line if isinstance(line, ColouredLine) else safe_text(line)}\n", flush=flush)


def write_fields(fields: Sequence[str]) -> None:
    """Write one line of fields separated by tabs to standard output, escaped."""
    write_out("\t".join(map(safe_text, fields)) + "\n")


def write_error(message: str) -> None:
    """Write one line to standard error, escaped and marked as ours."""
    write_err(f"lockfast: {safe_text(message)}\n")


def write_note(text: str) -> None:
    """Write a note, neither output nor an error, to standard error; newlines stay."""
    write_err("\n".join(map(safe_text, text.split("\n"))) + "\n")


def write_prompt(text: str) -> None:
    """Write a question to standard error, escaped, without a newline."""
    write_err(safe_text(text))


class LogFormatter(logging.Formatter):
    """Formats log records as lines like our other messages, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return f"lockfast: {safe_text(record.getMessage())}"


def shell_word(text: str) -> str:
    """Return `text` quoted for a shell and safe to show; escapes need bash or zsh."""
    if safe_text(text) == text:
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{safe_text(escaped)}'"


def terminal_width() -> int | None:
    """Return the width of standard output in columns; None if it is not a terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def without_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], *titles: str
) -> tuple[list[str], list[list[str]]]:
    """Return the same table without some of its columns."""
    keep = [at for at, title in enumerate(header) if title not in titles]
    return [header[at] for at in keep], [[row[at] for at in keep] for row in rows]


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    colour: bool = False,
    indent: str = "",
) -> Iterator[str]:
    """Yield the rows as aligned lines; with a `width`, free-text columns are cut to fit it."""
    lines = [list(header), *([safe_text(cell) for cell in row] for row in rows)]
    widths = [max(map(columns_of, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        floors = [
            max(NARROWEST_COLUMN, len(title)) if title in FREE_TEXT else columns
            for title, columns in zip(header, widths, strict=True)
        ]
        _narrow(widths, floors, width - 2 * (len(widths) - 1))
    for line in lines:
        cells = [_fit(cell, columns) for cell, columns in zip(line, widths, strict=True)]
        if not colour:
            yield indent + "  ".join(cells).rstrip()
            continue
        cells[-1] = cells[-1].rstrip()
        code_of = _header_colour if line is lines[0] else _cell_colour
        painted = map(coloured, cells, map(code_of, header, line))
        yield ColouredLine(indent + "  ".join(painted))


def _header_colour(title: str, cell: str) -> str:
    return BOLD


def _cell_colour(title: str, cell: str) -> str:
    """Return the colour that highlights waiting claims, expired leases and ended sessions."""
    if title == "WAITING" and cell != "-":
        return YELLOW
    if cell == "expired":
        return RED
    if title == "STATE":
        return GREEN if cell == "alive" else DIM
    return DIM if title in ("TOKEN", "SESSION", "RENEWALS") else ""


def _narrow(widths: list[int], floors: Sequence[int], total: int) -> None:
    """Narrow the widest column repeatedly until the sum is `total`, if that is possible."""
    while sum(widths) > total:
        spare = [at for at in range(len(widths)) if widths[at] > floors[at]]
        if not spare:
            return
        widths[max(spare, key=lambda at: widths[at])] -= 1


def _fit(text: str, columns: int) -> str:
    """Return `text` padded or cut in its middle to exactly `columns` columns."""
    missing = columns - columns_of(text)
    if missing >= 0:
        return text + " " * missing
    end = _tail(text, (columns - 1) // 2)
    begin = _tail(text[::-1], columns - 1 - columns_of(end))[::-1]
    return _fit(f"{begin}…{end}", columns)


def _tail(text: str, columns: int) -> str:
    """Return the longest suffix of `text` that takes at most `columns` columns."""
    start = len(text)
    while start > 0 and columns_of(text[start - 1 :]) <= columns:
        start -= 1
    return text[start:]


def columns_of(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1
        for c in text
    )


def duration(seconds: float) -> str:
    """Return a duration in at most two units."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def local_time(at: float) -> str:
    """Return seconds since 1970 as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def local_time_ms(at: float) -> str:
    """Return seconds since 1970 as local time of day, with milliseconds."""
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 1000) % 1000:03}"
