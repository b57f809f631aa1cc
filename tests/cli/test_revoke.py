"""revoke: confirms at a terminal, needs --yes elsewhere, and names the former holder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.processes import LOCKFAST, Cli
from tests.cli.terminals import CTRL_C, Terminal, open_terminal, start_job


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        yield terminal


REVOKE = (*LOCKFAST, "revoke", "a", "--reason", "stuck")


def ask(cli: Cli, terminal: Terminal, *argv: str) -> str:
    """Revoke at a terminal; return the question."""
    start_job(cli, terminal, *argv)
    assert terminal.line().startswith("[pid ")
    return terminal.prompt("[y/N] ")


def test_the_holder_is_told_who_and_why(cli: Cli) -> None:
    holder = cli.hold("a", "--owner", "alice")
    done = cli.run("revoke", "a", "--reason", "stuck since noon", "--yes", "--owner", "carol")
    assert done.returncode == 0
    assert done.stdout.startswith("took 'a' from alice (token ")
    assert holder.exit_code() == 76
    complaint = holder.complaint()
    assert "stuck since noon" in complaint
    assert "carol" in complaint


def test_by_default_the_holder_is_told_user_and_host(cli: Cli) -> None:
    holder = cli.hold("a")
    cli.run("revoke", "a", "--reason", "r", "--yes", environment={"LOGNAME": "dora"})
    assert holder.exit_code() == 76
    assert "dora@" in holder.complaint()


def test_without_a_terminal_it_needs_yes(cli: Cli) -> None:
    cli.hold("a")
    done = cli.run("revoke", "a", "--reason", "r", stdin="y\n")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert cli.run("show", "a").returncode == 0


def test_nothing_to_revoke_gives_1(cli: Cli) -> None:
    done = cli.run("revoke", "a", "--reason", "r", "--yes")
    assert (done.returncode, done.stderr) == (
        1,
        "lockfast: lock 'a' has no holder; nothing was changed\n",
    )
    done = cli.run("revoke", "--session", "0123", "--reason", "r", "--yes")
    assert done.returncode == 1
    assert "session '0123' does not exist" in done.stderr


def test_a_session_is_ended_once(cli: Cli) -> None:
    holder = cli.hold("a")
    session = cli.show("a")["holders"][0]["session"]
    revoke = ("revoke", "--session", session, "--reason", "r", "--yes")
    assert cli.run(*revoke).returncode == 0
    assert holder.exit_code() == 76
    again = cli.run(*revoke)
    assert again.returncode == 1
    assert "has already ended" in again.stderr


@pytest.mark.parametrize(("answer", "code", "held"), [("y", 0, 1), ("n", 1, 0), ("", 1, 0)])
def test_at_a_terminal_it_asks(
    cli: Cli, terminal: Terminal, answer: str, code: int, held: int
) -> None:
    cli.hold("a", "--owner", "alice")
    assert "take 'a' from alice (token " in ask(cli, terminal, *REVOKE)
    terminal.type(answer.encode() + b"\n")
    terminal.line()
    assert terminal.line() == f"[exit {code}]"
    assert cli.run("show", "a").returncode == held


def test_whoever_got_the_lock_while_it_asked_keeps_it(cli: Cli, terminal: Terminal) -> None:
    first = cli.hold("a", "--owner", "alice")
    ask(cli, terminal, *REVOKE)
    first.write("go")
    assert first.exit_code() == 0
    cli.hold("a", "--owner", "bob")
    terminal.type(b"y\n")
    assert "is now held by bob (token " in terminal.line()
    assert terminal.line() == "[exit 1]"
    assert cli.show("a")["holders"][0]["owner"] == "bob"


def test_ctrl_c_at_the_question_revokes_nothing(cli: Cli, terminal: Terminal) -> None:
    cli.hold("a")
    ask(cli, terminal, *REVOKE)
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"
    assert cli.run("show", "a").returncode == 0
