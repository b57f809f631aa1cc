"""The pages of the site: those under docs/ and the project's own, as docs/index.md lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
INDEX: Final = DOCS / "index.md"
PROJECT: Final = "project"
"""The site's directory for the pages of the repository's root."""

_LINK: Final = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE: Final = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_SECTION: Final = re.compile(r"^## (.+)$")
_ROW: Final = re.compile(r"^\| \[([^\]]+)\]\(([^)#]+)\)")


class SiteError(Exception):
    """The site cannot be built from the sources; the message says which page to change, and how."""


class Section(NamedTuple):
    """A heading of docs/index.md with the pages in its table."""

    title: str
    pages: list[tuple[str, str]]
    """Title and path on the site."""


def place_of(path: Path) -> str:
    """Return the path of a repository page on the site. Raises SiteError if it has none."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    if path.parent == ROOT and path.suffix == ".md" and path.name != "README.md":
        return f"{PROJECT}/{path.name}"
    raise SiteError(f"{path.relative_to(ROOT)} is not part of the site")


def sections() -> list[Section]:
    """Return the navigation: the sections of docs/index.md that list pages, in their order."""
    found: list[Section] = []
    for line in INDEX.read_text(encoding="utf-8").splitlines():
        if heading := _SECTION.match(line):
            found.append(Section(heading[1], []))
        elif (row := _ROW.match(line)) and found:
            found[-1].pages.append((row[1], place_of((DOCS / row[2]).resolve())))
    return [section for section in found if section.pages]


def sources() -> dict[str, str]:
    """Return the text of each page, by its path on the site, with links that work there."""
    paths = [*DOCS.rglob("*.md"), *(set(ROOT.glob("*.md")) - {ROOT / "README.md"})]
    return {place_of(path): _relinked(path) for path in sorted(paths)}


def _relinked(page: Path) -> str:
    place = Path(place_of(page))

    def moved(link: re.Match[str]) -> str:
        if ":" in link[2]:
            return link[0]
        try:
            target = place_of((page.parent / link[2]).resolve())
        except SiteError as error:
            raise SiteError(
                f"{page.relative_to(ROOT)} links to {link[2]}: {error}; name it in backquotes"
            ) from None
        up = "../" * (len(place.parts) - 1)
        return f"{link[1]}{up}{target}{link[3] or ''}{link[4]}"

    # Python's re.split keeps the code blocks, at odd positions, because they are a group.
    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if at % 2 else _LINK.sub(moved, part) for at, part in enumerate(parts))
