"""Each promise on the page of guarantees names tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "guarantees.md"
REFERENCE = re.compile(r"(?:tests|src/lockfast/conformance)/[\w./-]+\.py::\w+(?:::\w+)?")
PROMISES = ("G1 grant", "G2 told", "G3 fence", "G4 alive")
STORES = ("memory", "sqlite", "redis", "redis+sentinel", "quorum", "etcd", "postgresql")

ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \*?\*?G\d ", line)
]
REFERENCES = sorted(set(REFERENCE.findall(PAGE.read_text(encoding="utf-8"))))


def test_page_begins_with_what_is_not_promised() -> None:
    """The first heading after the title says so."""
    headings = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "What is not promised"


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("store", STORES)
def test_each_promise_is_shown_for_each_store(promise: str, store: str) -> None:
    """There is a row for every promise and store, and each such row names a test."""
    rows = [row for row in ROWS if row[0].strip("*") == promise and store == row[1]]
    assert rows
    assert all(REFERENCE.search(row[-1]) for row in rows)


@pytest.mark.parametrize("reference", REFERENCES)
def test_named_test_exists(reference: str) -> None:
    """The file has a test function or a class of this name."""
    path, *names = reference.split("::")
    assert names[-1].startswith("test_")
    assert names in functions_of(ROOT / path)


def functions_of(path: Path) -> list[list[str]]:
    """Return the functions of a module, by name; methods as class and method."""
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append([node.name])
        elif isinstance(node, ast.ClassDef):
            found += [
                [node.name, inner.name]
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    return found
