"""The site has every page and every public name, and its checks find what is broken.

`./dev check` builds the site and runs these checks on it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

import lockfast.events
from tests.docs.pages import ROOT
from website.check import problems_of
from website.pages import SiteError, place_of, sections, sources

REFERENCE = ROOT / "docs" / "reference"
NAMES = re.compile(r"^::: (\S+)$", re.MULTILINE)
MODULES = ["lockfast", "lockfast.aio", "lockfast.guards", "lockfast.testing", "lockfast.errors"]
MODULES += ["lockfast.metrics", "lockfast.otel", "lockfast.logs"]


def referenced() -> list[str]:
    return [name for page in REFERENCE.glob("*.md") for name in NAMES.findall(page.read_text())]


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module: str) -> None:
    """What `__all__` exports is on a reference page; errors are on their own."""
    exported = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    errors = {f"{module}.{name}" for name in importlib.import_module("lockfast.errors").__all__}
    missing = exported - set(referenced())
    assert (missing - errors if module == "lockfast" else missing) == set()


def test_the_reference_has_every_event() -> None:
    events = {
        f"lockfast.events.{name}"
        for name, value in vars(lockfast.events).items()
        if inspect.isclass(value) and value.__module__ == "lockfast.events"
    }
    assert len(events) > 15
    assert events - set(referenced()) == set()


def test_no_name_is_on_two_reference_pages() -> None:
    names = referenced()
    assert sorted(names) == sorted(set(names))


def test_the_navigation_has_every_page_once() -> None:
    listed = [place for section in sections() for _, place in section.pages]
    assert sorted([*listed, "index.md"]) == sorted(sources())
    assert all(section.pages for section in sections())


def test_links_to_the_pages_of_the_project_are_moved() -> None:
    pages = sources()
    assert "](project/ARCHITECTURE.md)" in pages["index.md"]
    assert "](../project/ARCHITECTURE.md)" in pages["project/CONTRIBUTING.md"]


def test_a_file_outside_the_site_is_refused() -> None:
    with pytest.raises(SiteError, match="dev is not part of the site"):
        place_of(ROOT / "dev")


PAGE = '<html><body><nav><a href="b.html">B</a></nav><article>{}</article></body></html>'


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('<a href="c.html">C</a>', "index.html: links to c.html, which does not exist"),
        ('<a href="a.html#x">A</a>', "index.html: links to a.html#x, but there is no such anchor"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "index.html: loads https://cdn.example/x.js from the network",
        ),
        ('<img src="x.png">', "index.html: loads x.png, which does not exist"),
    ],
)
def test_a_broken_page_is_found(content: str, problem: str, tmp_path: Path) -> None:
    write_site(tmp_path, content + '<a href="a.html#here">A</a><a href="b.html">B</a>')
    assert problems_of(tmp_path) == [problem]


def test_a_page_that_only_the_navigation_links_is_an_orphan(tmp_path: Path) -> None:
    write_site(tmp_path, '<a href="a.html#here">A</a>')
    assert problems_of(tmp_path) == ["b.html: not within 2 clicks from the index"]


def test_a_sound_site_has_no_problems(tmp_path: Path) -> None:
    write_site(tmp_path, '<a href="a.html#here">A</a><a href="b.html">B</a>')
    assert problems_of(tmp_path) == []


def write_site(directory: Path, index: str) -> None:
    (directory / "index.html").write_text(PAGE.format(index))
    (directory / "a.html").write_text(PAGE.format('<h2 id="here">Here</h2>'))
    (directory / "b.html").write_text(PAGE.format("<p>B</p>"))
