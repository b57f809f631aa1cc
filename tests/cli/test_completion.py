"""Completion scripts: every command and option, and bash really completes."""

from __future__ import annotations

import subprocess

import pytest

from lockfast.cli import main
from lockfast.cli.arguments import make_parser
from lockfast.cli.completion import commands_of, options_of


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_it(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for name, command in commands_of(make_parser()).items():
        assert name in text
        for option in options_of(command):
            assert (f"-l {option.name[2:]}" if shell == "fish" else option.name) in text


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["s"], {"show", "schema", "serve", "sessions", "simulate", "stats"}),
        (["ls", "--k"], {"--kind"}),
        (["ls", "--kind", "se"], {"semaphore"}),
        (["run", "a", "--on-lost", ""], {"term", "signal", "ignore"}),
        (["completion", "z"], {"zsh"}),
        (["revoke", "--re"], {"--reason"}),
    ],
)
def test_bash_completes(
    line: list[str], offered: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(f"'{word}'" for word in ["lockfast", *line])
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(line)}; _lockfast; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", f"{script('bash', capsys)}\n{ask}"], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == offered
