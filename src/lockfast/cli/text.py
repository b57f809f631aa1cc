"""Text for people."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Iterator, Sequence


def printable(text: str) -> str:
    """Text of others, harmless to a terminal."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with the columns one below the other."""
    lines = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(_columns, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (
            cell + " " * (width - _columns(cell)) for cell, width in zip(line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in ("W", "F") else 1
        for c in text
    )


def span(seconds: float) -> str:
    """A duration as one would say it: two units at the most."""
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


def instant(at: float) -> str:
    """Seconds since 1970 as local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def instant_ms(at: float) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 1000) % 1000:03}"
