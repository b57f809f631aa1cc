"""The dashboard's drawings: the timeline of a lock, and the wait graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

from lockfast.core import commands as c
from lockfast.core.modes import MODES_OF_KIND
from lockfast.drawing.shapes import until_now
from lockfast.flow.admin import WatchEvent
from lockfast.flow.wait_graph import graph_of
from lockfast.server.dashboard.history import HISTORY_S
from lockfast.telemetry.pictures import lock_timeline, wait_picture
from lockfast.telemetry.spans import Span, spans_of

KINDS: Final = tuple(MODES_OF_KIND)
SPANS_DRAWN: Final = 400
"""The latest claims of a lock."""
WIDTH_MIN, WIDTH_MAX = 320, 2400


def timeline(
    view: c.ResourceView, events: Sequence[WatchEvent], now_s: float, width: float
) -> dict[str, Any]:
    """Return the timeline of a lock's last hour, or of the part with known claims."""
    spans = spans_of(events)[-SPANS_DRAWN:]
    known = {(event.session, event.n) for event in events}
    spans += [
        Span(view.kind, view.name, "", holder.owner, token=holder.token or None)
        for holder in view.holders
        if (holder.session, holder.n) not in known
    ]
    times = [at for span in spans for at in (span.asked, span.granted) if at is not None]
    span_s = min(HISTORY_S, max(60.0, (now_s - min(times, default=now_s)) * 1.05))
    picture, colours = lock_timeline(
        view.kind,
        view.name,
        spans,
        now_s - span_s,
        now_s,
        width=min(WIDTH_MAX, max(WIDTH_MIN, width)),
        left=0,
        label=until_now,
        exact=True,
    )
    return {"svg": picture, "owners": [[owner, series] for owner, series in colours]}


def wait_graph(views: Iterable[c.ResourceView], sees: Callable[[str], bool]) -> dict[str, Any]:
    """Return the wait graph of the locks that may be shown."""
    found = graph_of([view for view in views if sees(view.name)])
    picture, left_out = wait_picture(found, _link)
    stuck = {edge.waiter for edge in found.edges if edge.deadlocked}
    return {
        "svg": picture if found.edges else "",
        "leftOut": left_out,
        "deadlocked": len(stuck),
        "edges": [
            [
                edge.waiter.owner,
                edge.blocker.owner,
                edge.kind,
                edge.name,
                edge.seconds,
                edge.blocker_holds,
                edge.deadlocked,
            ]
            for edge in found.edges[:500]
        ],
    }


def _link(kind: str, name: str) -> str:
    return f"#/lock/{quote(kind, safe='')}/{quote(name, safe='')}"
