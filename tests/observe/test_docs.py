"""What docs/operating.md says is true: its table of metrics, its alerts, its commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]

import lockfast
from lockfast.telemetry.measures import MEASURES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")


def test_the_table_of_metrics_is_the_code() -> None:
    rows = [
        f"| `{each.name}` | {', '.join(f'`{label}`' for label in each.labels)} | {each.about} |"
        for each in MEASURES
    ]
    found = [line for line in PAGE.splitlines() if re.match(r"\| `(lockfast_|leader_)", line)]
    assert found == rows


def test_every_alert_is_explained() -> None:
    rules = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text())
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Lockfast\w+)`", PAGE, re.MULTILINE) == names


def test_the_commands_of_the_runbook_work(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    lines = re.findall(r"^\$ lockfast (.*)$", PAGE, re.MULTILINE)
    assert len(lines) >= 7
    codes = {}
    with lockfast.connect(url) as client:
        lease = client.lock("orders/42").acquire()
        for line in lines:
            done = subprocess.run(
                [sys.executable, "-m", "lockfast", *shlex.split(line)],
                env={**os.environ, "LOCKFAST_URL": url},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            codes[line] = (done.returncode, done.stderr if done.returncode else "")
        assert not client.inspect("orders/42").holders
        assert lease.lost.wait(30)
    assert codes == dict.fromkeys(lines, (0, ""))
    assert "<svg" in (tmp_path / "locks.html").read_text(encoding="utf-8")
