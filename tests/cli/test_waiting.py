"""The line that `lockfast run` shows at a terminal while it waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockfast.cli.waiting import waiting_text
from lockfast.flow.admin import ClaimInfo, LockInfo
from tests.cli.processes import LOCKFAST, Cli
from tests.cli.terminals import CTRL_C, ERASE_LINE, Terminal, open_terminal, start_job


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        terminal.resize(120)
        yield terminal


def claim(owner: str, seconds: float) -> ClaimInfo:
    return ClaimInfo(owner, "s", 1, "", "exclusive", "", 1, 0, None, seconds, 20.0)


def lock(holders: int, waiting: list[str], closed_for: float = 0.0) -> LockInfo:
    return LockInfo(
        "lock",
        "a",
        tuple(claim("alice", 60.0) for _ in range(holders)),
        tuple(claim(owner, 1.0) for owner in waiting),
        holders,
        len(waiting),
        closed_for,
        0,
    )


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (None, "waiting 12 s for 'a'; the store does not answer"),
        (lock(1, ["me"]), "waiting 12 s for 'a', position 1 of 1, held for 1 min 02 s by alice"),
        (
            lock(3, ["x", "me", "y"]),
            "waiting 12 s for 'a', position 2 of 3, held for 1 min 02 s by 2 more and alice",
        ),
        (lock(0, ["me"], 9.0), "waiting 12 s for 'a', position 1 of 1, closed for another 7.0 s"),
        (lock(0, []), "waiting 12 s for 'a'"),
    ],
)
def test_what_it_says(seen: LockInfo | None, text: str) -> None:
    assert waiting_text("a", seen, 2.0, 12.0, "me") == text


def test_it_names_the_holder_and_disappears(cli: Cli, terminal: Terminal) -> None:
    cli.environment["TERM"] = "xterm"
    holder = cli.hold("a", "--owner", "alice")
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", "echo", "ran")
    assert terminal.line().startswith("[pid ")
    seen = terminal.prompt(" by alice")
    assert seen.startswith(f"{ERASE_LINE}waiting ")
    assert "for 'a', position 1 of 1, held for " in seen
    holder.write("go")
    assert terminal.line() == "ran"
    assert terminal.line() == "[exit 0]"


def test_ctrl_c_leaves_a_clean_line(cli: Cli, terminal: Terminal) -> None:
    cli.environment["TERM"] = "xterm"
    cli.hold("a", "--owner", "alice")
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", "echo", "ran")
    assert terminal.line().startswith("[pid ")
    terminal.prompt(" by alice")
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"
    assert cli.show("a")["waiting_count"] == 0


def test_a_terminal_that_does_not_know_its_width(cli: Cli, terminal: Terminal) -> None:
    """It reports 0 columns, for which shortening the line once never ended."""
    cli.environment["TERM"] = "xterm"
    terminal.resize(0)
    holder = cli.hold("a", "--owner", "alice")
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", "echo", "ran")
    assert terminal.line().startswith("[pid ")
    assert "for 'a', position 1 of 1" in terminal.prompt(" by alice")
    holder.write("go")
    assert terminal.line() == "ran"


def test_without_a_terminal_nothing_is_shown(cli: Cli) -> None:
    holder = cli.hold("a")
    waiter = cli.start("run", "a", "--timeout", "2.5s", "--", "true")
    assert waiter.exit_code() == 75
    assert waiter.complaint().count("\n") == 1
    holder.write("go")
