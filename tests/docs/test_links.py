"""The links and commands on the pages lead somewhere."""

import re
import subprocess
import sys

import pytest

from lockfast.cli.arguments import make_parser
from lockfast.cli.completion import commands_of
from tests.docs.pages import NAMES, ROOT, prose_of

LINK = re.compile(r"\]\(([^)\s]+)\)")
DEV = re.compile(r"\./dev ([a-z]+)")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    """A relative link names a file, and a fragment names one of its headings."""
    page = ROOT / name
    broken = []
    for target in LINK.findall(prose_of(page)):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, fragment = target.partition("#")
        aim = (page.parent / path) if path else page
        if not aim.exists() or (fragment and fragment not in fragments(aim.read_text("utf-8"))):
            broken.append(target)
    assert broken == []


def fragments(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_words_of_dev_exist() -> None:
    """`./dev` has every WORD that a page mentions as `./dev WORD`."""
    usage = subprocess.run(
        [sys.executable, str(ROOT / "dev"), "help"], capture_output=True, text=True, check=True
    ).stdout
    known = set(re.findall(r"^  ([a-z]+) ", usage, re.MULTILINE))
    mentioned = {word for name in NAMES for word in DEV.findall((ROOT / name).read_text("utf-8"))}
    assert mentioned
    assert mentioned <= known


def test_the_index_names_every_command() -> None:
    """So does the page of the command line."""
    for page in ("docs/index.md", "docs/cli.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"`(?:lockfast )?([a-z-]+)", text))
        assert sorted(set(commands_of(make_parser())) - named) == []


def test_the_index_has_every_page() -> None:
    """A new page is linked from docs/index.md."""
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for target in LINK.findall(prose_of(index))
    }
    pages = {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert sorted(pages - linked) == []
