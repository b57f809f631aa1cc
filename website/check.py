"""Checks of the built site: links and anchors, reachability, and no loads from the network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

CLICKS_MAX: Final = 2
_NOT_FOUND: Final = "404.html"
"""The theme's own page; its links are relative to the server's root."""
_LOADED: Final = {"script": "src", "img": "src", "iframe": "src", "link": "href"}


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser loads to show it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.content_links: list[str] = []
        """The links in the text, as opposed to the navigation, which links every page."""
        self.loaded: list[str] = []
        self._articles = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if values.get(name))
        self._articles += tag == "article"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
            if self._articles:
                self.content_links.append(values["href"])
        elif tag in _LOADED and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(values.get(_LOADED[tag], ""))

    def handle_endtag(self, tag: str) -> None:
        self._articles -= tag == "article"


def problems_of(site: Path) -> list[str]:
    """Return the problems of a built site, one line each."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != _NOT_FOUND}
    return [
        *(
            f"{path.relative_to(site)}: {problem}"
            for path, page in pages.items()
            for problem in _broken(path, page, pages)
        ),
        *_unreachable(site, pages),
    ]


def _broken(path: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    found = []
    for link in page.links:
        target, fragment = _target(path, link)
        if target is None:
            continue
        if not target.exists():
            found.append(f"links to {link}, which does not exist")
        elif fragment and target in pages and fragment not in pages[target].ids:
            found.append(f"links to {link}, but there is no such anchor")
    for source in page.loaded:
        target, _ = _target(path, source)
        if target is None and not source.startswith("data:") and source:
            found.append(f"loads {source} from the network")
        elif target is not None and not target.exists():
            found.append(f"loads {source}, which does not exist")
    return found


def _target(path: Path, link: str) -> tuple[Path | None, str]:
    """Return the file that a link leads to (None for another site), and its fragment."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None, ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    return (target / "index.html" if target.is_dir() else target), unquote(parts.fragment)


def _unreachable(site: Path, pages: dict[Path, Page]) -> list[str]:
    """Return the pages that links in the text do not reach from the index in CLICKS_MAX clicks."""
    reached = {site / "index.html"}
    front = set(reached)
    for _ in range(CLICKS_MAX):
        front = {
            target
            for path in front
            for link in pages[path].content_links
            if (target := _target(path, link)[0]) in pages and target is not None
        } - reached
        reached |= front
    return [
        f"{path.relative_to(site)}: not within {CLICKS_MAX} clicks from the index"
        for path in pages
        if path not in reached
    ]
