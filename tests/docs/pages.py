"""The pages that users read, and helpers to split them into code and text."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(
    r"^(?:<!-- tested by (?P<test>\S+) -->\n)?```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
"""A code block. If it needs a server or a framework, a comment before it names its test."""


class Block(NamedTuple):
    """A code block on a page."""

    line: int
    language: str
    code: str
    test: str | None


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, it.start("code")) + 1, it["language"], it["code"], it["test"])
        for it in FENCE.finditer(text)
    ]


def python_of(page: Path) -> str:
    """Return all Python of a page that needs no server, with the page's line numbers."""
    lines = [""] * (page.read_text(encoding="utf-8").count("\n") + 1)
    for block in blocks_of(page):
        if block.language == "python" and block.test is None:
            code = block.code.splitlines()
            lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines)


def prose_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
