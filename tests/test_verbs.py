"""How a claim or session ends has one small set of verbs: the table in `flow/__init__.py`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "src" / "lockfast"
SYNONYMS = (
    "abandon|over|outlived?|forsake|forget|retire|withdraw|drop(ped)?|finish(ed)?|bury|"
    "(take|taken|give|given)_(back|away)|as_told"
)
"""Verbs that named the end of a claim or session before, or could."""
ABOUT_OTHER_THINGS = {
    "forget_below": "numbers that a client will not use again",
    "dropped": "events that a slow observer missed",
    "_finish": "a run of `once`, with its outcome",
    "finish": "a run of `once`, which has a result",
    "hands_over": "a watch that passes on the lock",
    "watch_over": "watch processes",
    "_watch_over": "watch processes",
}


def _method_names(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node.name


@pytest.mark.parametrize("package", ["core", "flow", "api"])
def test_methods_use_the_verbs_of_the_table(package: str) -> None:
    synonym = re.compile(rf"(^|_)({SYNONYMS})(_|$)")
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, name in _method_names(ROOT / package)
        if synonym.search(name) and name not in ABOUT_OTHER_THINGS
    ]
    assert not found, "see the table in flow/__init__.py"
