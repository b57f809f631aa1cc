"""The pages that users read, and how to take them apart."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def python_of(page: Path) -> str:
    """All Python of a page, each line with its own number, so that errors point at the page."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in FENCE.finditer(text):
        if block[1] == "python":
            first = text.count("\n", 0, block.start(2))
            code = block[2].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def prose_of(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))
