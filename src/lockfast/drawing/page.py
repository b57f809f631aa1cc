"""Whole documents, and the parts of them that are not pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path


@cache
def style() -> str:
    """Return the style sheet of every page."""
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def document(title: str, body: str) -> str:
    """Return a whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{style()}</style></head><body><main><h1>{escape(title)}</h1>{body}</main>"
        "</body></html>\n"
    )


def verdict(text: str, *, good: bool) -> str:
    """Return the line that shows whether all is well; `text` is markup."""
    return f'<p class="verdict {"good" if good else "broken"}">{text}</p>'


def legend(swatches: Mapping[str, str]) -> str:
    """Return a legend: for each meaning, the content of a 26 × 14 SVG."""
    items = "".join(
        f'<li><svg width="26" height="14" viewBox="0 0 26 14" aria-hidden="true">{swatch}</svg> '
        f"{escape(text)}</li>"
        for text, swatch in swatches.items()
    )
    return f'<ul class="legend">{items}</ul>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table; `numbers` lists the columns to align right."""

    def cell(tag: str, at: int, text: str) -> str:
        right = ' class="number"' if at in numbers else ""
        return f"<{tag}{right}>{escape(text)}</{tag}>"

    head = "".join(cell("th", at, text) for at, text in enumerate(header))
    lines = (
        f"<tr>{''.join(cell('td', at, text) for at, text in enumerate(row))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
