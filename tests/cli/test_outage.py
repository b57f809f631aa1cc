"""An unreachable store: one line, and its exit code."""

from __future__ import annotations

import pytest

from tests.cli.processes import Cli
from tests.servers.ports import free_port


@pytest.mark.parametrize("scheme", ["redis", "etcd"])
@pytest.mark.parametrize(
    "options", [("--timeout", "0"), ("--no-wait", "--ttl", "1s"), ("--timeout", "1s"), ()]
)
def test_run_reports_it_in_one_line(cli: Cli, scheme: str, options: tuple[str, ...]) -> None:
    url = f"{scheme}://127.0.0.1:{free_port()}"
    done = cli.run("run", "a", *options, "--url", url, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith(f"lockfast: {url}: ")
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("show", "a"),
        ("sessions",),
        ("deadlocks",),
        ("revoke", "a", "--reason", "x", "--yes"),
    ],
    ids=lambda command: command[0],
)
def test_others_report_it_in_one_line(cli: Cli, command: tuple[str, ...]) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    done = cli.run(*command, "--url", url)
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith(f"lockfast: {url}: ")
    assert done.stderr.count("\n") == 1, done.stderr
