"""pytest finds the plugin, which loads nothing until a test uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import sys

def test_first():
    assert not [name for name in sys.modules if name.startswith("lockfast")]

def test_second(lockfast_client):
    lockfast_client.lock("a").acquire()

def test_third(lockfast_client, lockfast_store):
    lockfast_store.assert_free("a")
"""


def test_the_plugin_is_lazy_and_its_stores_are_isolated(tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
