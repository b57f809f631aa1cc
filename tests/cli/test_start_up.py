"""What starting the command line costs, and that nothing else pays for it."""

from __future__ import annotations

import pytest

import lockfast
from lockfast.cli.app import COMMANDS
from lockfast.cli.arguments import parse
from tests.cli.processes import LOCKFAST, Cli


def modules_after(cli: Cli, code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*sys.modules)"
    process = cli.start_program(LOCKFAST[0], "-c", script)
    return set(process.rest().splitlines()[-1].split())


def test_importing_lockfast_does_not_load_the_command_line(cli: Cli) -> None:
    loaded = modules_after(cli, "import lockfast")
    assert "lockfast.flow.acquire" in loaded
    assert not [name for name in loaded if name.startswith(("lockfast.cli", "argparse"))]


@pytest.mark.parametrize(
    "arguments",
    [["run", "a", "--", "true"], ["ls"], ["show", "a"], ["sessions"], ["revoke", "a", "--yes",
     "--reason", "r"]],
    ids=lambda arguments: str(arguments[0]),
)  # fmt: skip
def test_no_command_loads_asyncio(cli: Cli, arguments: list[str]) -> None:
    loaded = modules_after(cli, f"from lockfast.cli import main; main({arguments!r})")
    assert "lockfast.stores.sqlite.file" in loaded
    assert "asyncio" not in loaded
    assert ("lockfast.cli.supervisor" in loaded) == (arguments[0] == "run")


def test_version_and_help(cli: Cli) -> None:
    assert cli.run("--version").stdout == f"lockfast {lockfast.__version__}\n"
    for command in ([], *([name] for name in COMMANDS)):
        done = cli.run(*command, "--help", environment={"COLUMNS": "80"})
        assert done.returncode == 0
        assert done.stdout.startswith("usage: lockfast")
        assert [line for line in done.stdout.splitlines() if len(line) > 79] == []
    assert "LOCKFAST_FENCE" in cli.run("run", "--help").stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sesions", "there is no command 'sesions'; did you mean sessions?"),
        ("acquire", "there is no command 'acquire'; lockfast --help lists them"),
        ("redis://me:s3cret@host", "there is no command 'redis://me:***@host'; lockfast"),
    ],
)
def test_an_unknown_command(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([word, "orders/42"])
    assert ended.value.code == 2
    assert f"lockfast: {said}" in capsys.readouterr().err
