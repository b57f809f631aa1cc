"""ARCHITECTURE.md stays short, and the files it names exist."""

import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "ARCHITECTURE.md"
TEXT = PAGE.read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "lockfast"
PATH = re.compile(
    r"`((?:api|cli|conformance|core|flow|guards|runtimes|sim|stores)/[\w./]*|\w+\.py)`"
)
NAMED = re.compile(r"`([\w/]+\.py)`, `(\w+)`")
ROWS = re.findall(r"^\| ([^|]+) \| (.+) \|$", TEXT.partition("## One idea")[0], re.MULTILINE)


TABLE_PATHS = re.findall(
    r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:py|md))`", " ".join(row[1] for row in ROWS)
)


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 350


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_every_path_exists(path: str) -> None:
    if path == "errors.py":
        assert list(PACKAGE.glob("stores/*/errors.py"))
    assert (PACKAGE / path).exists()


@pytest.mark.parametrize("path", sorted({*TABLE_PATHS} - {"errors.py"}))
def test_every_path_that_answers_where_is_exists(path: str) -> None:
    """Most are relative to the package, those in the root are not."""
    assert (PACKAGE / path).exists() or (ROOT / path).exists()


@pytest.mark.parametrize(("path", "name"), NAMED.findall(TEXT))
def test_every_function_is_where_it_is_said_to_be(path: str, name: str) -> None:
    assert re.search(rf"\bdef {name}\b", (PACKAGE / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "question",
    [
        "token rule",
        "margin",
        "uncertain",
        "new mode",
        "new store",
        "errors of a driver",
        "namespace",
        "shard",
        "event for observers",
        "codec",
    ],
)
def test_where_is_answers(question: str) -> None:
    assert [row for row in ROWS if question in row[0]]
