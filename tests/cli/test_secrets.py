"""A password in a URL is neither printed nor shown by `ps`, and can be kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockfast.cli import main
from tests.cli.processes import READ, Cli, children_of, until

SECRET = "hunter2"


def arguments_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def test_ps_does_not_show_a_password_in_url(cli: Cli) -> None:
    """Neither for `lockfast run` nor for the process that becomes its command."""
    directory = cli.path.parent / f"u:{SECRET}@x"  # the only store here that needs no server
    directory.mkdir(mode=0o700)
    secret_url = f"sqlite://{directory}/locks.db"
    holder = cli.start("run", "a", "--url", secret_url, "--", *READ)
    assert holder.line() == "ready"
    assert SECRET not in arguments_of(holder.pid)
    assert "u:***@x/locks.db" in arguments_of(holder.pid)
    waiter = cli.start("run", "a", "--url", secret_url, "--", "true")
    show = ("show", "a", "--url", secret_url)
    until(lambda: "waiting (1)" in cli.run(*show).stdout, "the second run waits")
    assert SECRET not in cli.run(*show).stdout
    for pid in (waiter.pid, *children_of(waiter.pid)):
        assert SECRET not in arguments_of(pid)
    holder.write("go")
    assert holder.exit_code() == waiter.exit_code() == 0


@pytest.mark.parametrize("how", ["option", "environment"])
def test_the_url_can_be_in_a_file(cli: Cli, tmp_path: Path, how: str) -> None:
    file = tmp_path / "url"
    file.write_text(f"{cli.url}\n")
    del cli.environment["LOCKFAST_URL"]
    options = ("--url-file", str(file)) if how == "option" else ()
    if how == "environment":
        cli.environment["LOCKFAST_URL_FILE"] = str(file)
    assert cli.run("run", "a", *options, "--", "true").returncode == 0
    assert cli.path.exists()


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\n"])
def test_a_file_without_a_url_is_reported_in_one_line(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
    assert main(["ls", "--url-file", str(file)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"lockfast: --url-file={file}: the file")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", f"redis://u:{SECRET}@h", "extra"],
        ["ls", "--frobnicate", f"redis://u:{SECRET}@h"],
        ["run", "a", f"redis://u:{SECRET}@h", "--", "true"],
        ["doctor", f"other://u:{SECRET}@h"],
        ["reset", "x", "--yes", "--url", f"other://u:{SECRET}@h"],
    ],
)
def test_wrong_usage_does_not_print_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as exit:
        assert isinstance(exit.code, int)
        code = exit.code
    captured = capsys.readouterr()
    assert code == 2
    assert SECRET not in captured.out + captured.err
