"""The code that users copy from README and docs runs unchanged."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import NAMES, PAGES, ROOT, python_of

WITH_CODE = [name for name, page in zip(NAMES, PAGES, strict=True) if python_of(page).strip()]

RUN = """
import sys
exec(compile(sys.stdin.read(), sys.argv[1], "exec"), {"__name__": "__main__"})
"""


def test_there_is_code_to_run() -> None:
    """README and the guide show code."""
    assert {"README.md", "docs/guide.md"} <= set(WITH_CODE)


@pytest.mark.parametrize("name", WITH_CODE)
def test_code_on_a_page_runs(name: str, tmp_path: Path) -> None:
    """Every block of a page, one after another, unchanged, in an empty directory."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, name],
        input=python_of(ROOT / name),
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The loss of a lease is logged, and without any handler Python prints that here.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("lost '")]
    assert lines == []


def environment(state: Path) -> dict[str, str]:
    """Return our environment, with its own state directory and without settings of Lockfast."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKFAST_")}
    return {**kept, "XDG_STATE_HOME": str(state)}
