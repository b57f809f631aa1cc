"""What all pages that Lockfast draws have in common: colours, type, a time axis, a document.

A page is one HTML file with everything in it: no script, no font, no image from elsewhere. It
follows the reader's choice of light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

COLOURS: Final = ("#4c78a8", "#59a14f", "#b07aa1", "#e49444", "#499894", "#9c755f", "#d4a6c8")
BAD: Final = "#d62839"
GOOD: Final = "#2a9d5c"
WARN: Final = "#e49444"

STYLE: Final = f"""
:root {{ color-scheme: light dark;
  --ink: #1d2430; --faint: #d9dee7; --paper: #ffffff; --dim: #6b7585; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e6e9ef; --faint: #343b48; --paper: #161a21; --dim: #98a2b3; }} }}
body {{ margin: 2rem auto; max-width: 1240px; padding: 0 1rem;
  background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font: 12px system-ui, sans-serif; fill: var(--ink); }}
svg text.by {{ paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }}
svg text.dim {{ fill: var(--dim); }} svg text.on {{ fill: #fff; font-weight: 600; }}
.lane {{ stroke: var(--faint); }} .wait {{ stroke: var(--dim); stroke-dasharray: 3 3; }}
.bad {{ stroke: {BAD}; fill: none; stroke-width: 2.5; }} .badfill {{ fill: {BAD}; }}
.lost {{ stroke: var(--dim); fill: none; }} .store {{ fill: var(--dim); opacity: .45; }}
.ok {{ fill: {GOOD}; }} .pause {{ fill: var(--dim); opacity: .18; }}
.verdict {{ padding: .6rem 1rem; border-radius: .4rem; }}
.verdict.good {{ background: {GOOD}22; }} .verdict.broken {{ background: {BAD}22; }}
pre {{ overflow-x: auto; font-size: 12.5px; }}
ul.legend {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap;
  gap: .3rem 1.6rem; color: var(--dim); }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--faint); }}
th {{ color: var(--dim); font-weight: 500; }} td.number, th.number {{ text-align: right; }}
"""


class Scale(NamedTuple):
    """Maps instants to horizontal positions."""

    start: float
    end: float
    left: float
    width: float

    def x(self, at: float) -> float:
        span = max(1e-9, self.end - self.start)
        return self.left + (min(max(at, self.start), self.end) - self.start) / span * self.width


def time_axis(scale: Scale, top: float, bottom: float, per_second: float = 1.0) -> Iterator[str]:
    """Yield at most 12 vertical lines with their time since the start."""
    span = max(1e-9, scale.end - scale.start)
    steps = (factor * 10.0**power for power in range(-6, 19) for factor in (1, 2, 5))
    step = next(step for step in steps if span / step <= 12)
    for number in range(int(span / step) + 1):
        at = scale.start + number * step
        x = scale.x(at)
        yield f'<line class="lane" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        label = span_label((at - scale.start) / per_second)
        yield f'<text class="dim" x="{x + 3:.1f}" y="{top - 6}">{label}</text>'


def span_label(seconds: float) -> str:
    """Return a duration as a short label."""
    if seconds < 1:
        return f"{seconds * 1000:.4g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def document(title: str, body: str) -> str:
    """Return a whole page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def legend(items: Iterable[str]) -> str:
    """Return a legend; the items are plain text."""
    return f'<ul class="legend">{"".join(f"<li>{escape(item)}</li>" for item in items)}</ul>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table; `numbers` lists the columns to align right."""

    def cell(tag: str, at: int, text: str) -> str:
        right = ' class="number"' if at in numbers else ""
        return f"<{tag}{right}>{escape(text)}</{tag}>"

    head = "".join(cell("th", at, text) for at, text in enumerate(header))
    lines = (
        f"<tr>{''.join(cell('td', at, text) for at, text in enumerate(row))}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
