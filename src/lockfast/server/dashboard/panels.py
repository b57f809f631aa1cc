"""Additional panels of the page, such as the playground's.

A panel has an address (`/playground`), under which the server serves its static files and its
endpoints. If a server has panels, `main.js` imports `ADDRESS/panel.js` of each, which must export

    export const id = "playground";       // the panel's part of the page's address: #/playground
    export const title = "Playground";    // its entry in the navigation
    export function mount(element, context) { …; return unmount; }

`mount` is called each time the panel is shown, with an empty element, and returns a function that
is called when the panel is left. `context` has

    api(path, {method, body})   JSON request with the page's credentials; throws Problem
    picture                     locks, sessions, events; picture.subscribe(fn) → unsubscribe
    h(tag, attributes, ...children), text(value), svg(markup)    build elements; never innerHTML
    format                      durations, instants, tokens
    notify(message)             say something to the user and to screen readers

If there is an `ADDRESS/panel.css`, the panel adds it by `context.style(href)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from lockfast.server.service import Caller

Guarded = Callable[[Request, Caller], Awaitable[Response]]


class Panel(NamedTuple):
    """An additional panel of a server's page."""

    address: str
    """Without a trailing slash: `/playground`."""
    files: Path
    """The directory of its static files, with `panel.js`."""
    endpoints: tuple[tuple[str, str, Guarded], ...] = ()
    """Method, path and endpoint; for authenticated callers."""
