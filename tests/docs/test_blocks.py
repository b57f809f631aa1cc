"""Every code block on the pages is run, parsed or compared, by its language."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import subprocess
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from lockfast.cli.arguments import parse
from tests.docs.pages import NAMES, ROOT, Block, blocks_of, prose_of

ELSEWHERE = {
    "python": "tests/docs/test_code_on_pages.py",
    "curl": "tests/docs/test_curl.py",
    "alembic": "tests/integrations/test_schedulers.py",
    "sql": "tests/postgresql/",
}
"""Languages that other tests execute."""
BLOCKS = [
    pytest.param(block, id=f"{name}:{block.line}")
    for name in NAMES
    for block in blocks_of(ROOT / name)
]
NAMED = sorted({(name, b.test) for name in NAMES for b in blocks_of(ROOT / name) if b.test})
LOCKFAST = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*lockfast (.*)$", re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_what_its_language_says(block: Block) -> None:
    if block.language == "sh":
        subprocess.run(["bash", "-n"], input=block.code, text=True, check=True)
        check_commands(block.code)
    elif block.language == "console":
        check_commands(block.code)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.code))
    elif block.language == "ini":
        # systemd repeats sections' keys, which INI files of other programs do not.
        configparser.ConfigParser(strict=False, interpolation=None).read_string(block.code)
    elif block.language in ("", "text"):
        assert not is_python(block.code), "mark it as python, so that it is run"
    else:
        assert (ROOT / ELSEWHERE[block.language]).exists()


def check_commands(text: str) -> None:
    """Check that every `lockfast …` has a command and options that exist."""
    for line in LOCKFAST.findall(text):
        words = shlex.split(re.split(r" \||\s\s+#| &|; | >", line)[0], comments=True)
        if words:
            parse(words)


def is_python(text: str) -> bool:
    """Return True for code rather than output: it parses and has a statement with an effect."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    doing = (ast.Import, ast.ImportFrom, ast.With, ast.AsyncWith, ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, doing) for node in ast.walk(tree))


@pytest.mark.parametrize("name", NAMES)
def test_no_python_hides_in_indented_text(name: str) -> None:
    """Indented blocks are for output and URLs; nothing would run code in them."""
    for block in re.findall(r"\n\n((?:    .*\n|\n(?=    ))+)", prose_of(ROOT / name)):
        assert not is_python(textwrap.dedent(block)), block


@pytest.mark.parametrize(("name", "test"), NAMED)
def test_the_test_that_a_block_names_reads_the_page(name: str, test: str) -> None:
    text = (ROOT / test).read_text(encoding="utf-8")
    assert Path(name).name in text
