"""Lockfast on macOS and Windows, as far as this machine can show it.

Each test runs a part of the suite in an interpreter in which `lockfast` sees the standard library
of that platform (see shim.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMORY = ("tests/conformance/test_api.py", "-k", "memory-asyncio")
REDIS = ("tests/platforms/redis_over_tcp.py", "-k", "threads")
SQLITE = ("tests/conformance/test_api.py", "-k", "sqlite-threads")


def on(platform: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "LOCKFAST_TEST_PLATFORM": platform, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize(
    ("platform", "suite"),
    [
        ("windows", MEMORY),
        ("windows", REDIS),
        ("macos", MEMORY),
        ("macos", REDIS),
        ("macos", SQLITE),
    ],
    ids=["windows-memory", "windows-redis", "macos-memory", "macos-redis", "macos-sqlite"],
)
def test_the_store_keeps_its_contract(platform: str, suite: tuple[str, ...]) -> None:
    plugins = ("-p", "tests.platforms.shim", "-p", "no:cacheprovider")
    done = on(platform, "-m", "pytest", "-q", *plugins, *suite)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert " passed" in done.stdout


def test_windows_without_file_locks_or_unix_sockets_says_what_to_use_instead(
    tmp_path: Path,
) -> None:
    program = f"""
import tests.platforms.shim
import lockfast
for url in ("sqlite://{tmp_path}/locks.db", "unix://{tmp_path}/redis.sock"):
    try:
        lockfast.connect(url)
    except lockfast.UnsupportedError as error:
        print(error)
"""
    done = on("windows", "-c", program)
    assert done.stderr == ""
    embedded, unix = done.stdout.splitlines()
    assert "redis://" in embedded
    assert "memory://" in embedded
    assert "no Unix sockets" in unix


def test_the_shim_takes_things_away() -> None:
    program = """
import tests.platforms.shim
from lockfast.runtimes import platform
print(type(platform.poll()).__name__, platform.boot_id() == "", platform.has_file_locks())
"""
    assert on("windows", "-c", program).stdout == "SelectPoll True False\n"
    assert on("macos", "-c", program).stdout == "poll True True\n"
