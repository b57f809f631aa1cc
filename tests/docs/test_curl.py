"""The commands on the page about curl, executed word for word against a real server."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.docs.pages import ROOT
from tests.servers.lockserver import ServerProcess

PAGE = ROOT / "docs" / "api-by-curl.md"


def test_the_page_about_curl(tmp_path: Path) -> None:
    blocks = re.findall(r"```curl\n(.*)\n→ (.*)\n```", PAGE.read_text())
    assert len(blocks) >= 12
    with ServerProcess(f"sqlite://{tmp_path}/locks.db", tmp_path) as server:
        environment = {**os.environ, "URL": server.url, "TOKEN": server.token}
        for command, expected in blocks:
            told = subprocess.run(
                ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
            ).stdout
            pattern = ".*".join(map(re.escape, expected.split("…")))
            assert re.match(pattern, told), f"{command}\ngave {told}\nnot  {expected}"
            found = re.match(r'\{"session":"(s-[0-9a-f]{32})"', told)
            if found:
                environment["SESSION"] = found[1]


def test_the_readme_takes_a_lock_with_curl(tmp_path: Path) -> None:
    (command,) = re.findall(r"^curl .*\n(?: .*\n)*", (ROOT / "README.md").read_text(), re.MULTILINE)
    with ServerProcess(f"sqlite://{tmp_path}/locks.db", tmp_path) as server:
        command = command.replace("http://127.0.0.1:7601", server.url)
        environment = {**os.environ, "TOKEN": server.token}
        told = subprocess.run(
            ["bash", "-c", command], env=environment, capture_output=True, text=True, check=True
        ).stdout
    assert '"Granted":{"token":' in told
