"""`lockfast run` at a terminal: keys, Ctrl-C, Ctrl-Z, pipes and scripts work as without it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from tests.cli.processes import LOCKFAST, NAMING, Cli, children_of, is_alive, python
from tests.cli.terminals import CTRL_C, CTRL_Z, Terminal, open_terminal, start_job

READER = """
import signal
signal.signal(signal.SIGTTIN, lambda number, frame: print("SIGTTIN", flush=True))
print("ready", flush=True)
print("got", input(), flush=True)
"""
PAUSE = ("sh", "-c", "echo ready; read line")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        yield terminal


def pid_of(terminal: Terminal) -> int:
    said = terminal.line()
    assert said.startswith("[pid ")
    return int(said[5:-1])


def quoted(*argv: str) -> str:
    """Quote for a line of shell script."""
    return " ".join("'" + part.replace("'", "'\\''") + "'" for part in argv)


def test_the_command_reads_the_terminal(cli: Cli, terminal: Terminal) -> None:
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", *python(READER))
    pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(b"hello\n")
    assert terminal.line() == "got hello"
    assert terminal.line() == "[exit 0]"


def test_ctrl_c_reaches_the_command_exactly_once(cli: Cli, terminal: Terminal) -> None:
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", *python(NAMING))
    run = pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(CTRL_C)
    assert terminal.line() == "SIGINT"
    os.kill(run, signal.SIGUSR2)
    assert terminal.line() == "SIGUSR2"
    terminal.type(b"\n")
    assert terminal.line() == "[exit 9]"


def test_in_a_pipe_ctrl_c_reaches_the_command_exactly_once(cli: Cli, terminal: Terminal) -> None:
    """In a pipe `run` gets it from the terminal and forwards it."""
    pipe = quoted(*LOCKFAST, "run", "a", "--", *python(NAMING)) + " | (trap '' INT; cat)"
    start_job(cli, terminal, "sh", "-c", f"trap '' USR2; trap : INT; {pipe}")
    job = pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(CTRL_C)
    assert terminal.line() == "SIGINT"
    (run,) = (pid for pid in children_of(job) if children_of(pid))
    os.kill(children_of(run)[0], signal.SIGUSR2)
    assert terminal.line() == "SIGUSR2"
    terminal.type(b"\n")
    assert terminal.line() == "[exit 0]"


def test_ctrl_c_that_ends_the_command_gives_130(cli: Cli, terminal: Terminal) -> None:
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", *PAUSE)
    pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"
    assert cli.run("show", "a").returncode == 1


def test_ctrl_c_ends_the_script_around_us(cli: Cli, terminal: Terminal) -> None:
    """Only the command got it from the terminal, and a script continues after exit 130."""
    script = f"{quoted(*LOCKFAST, 'run', 'a', '--', *PAUSE)}; echo survived"
    start_job(cli, terminal, "sh", "-c", script)
    pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"


def test_ctrl_c_while_waiting_gives_130_and_leaves_no_claim(cli: Cli, terminal: Terminal) -> None:
    cli.hold("a")
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", "echo", "ran")
    pid_of(terminal)
    cli.wait_for_queue("a", 1)
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"
    assert cli.show("a")["waiting_count"] == 0
    assert len(cli.live_sessions()) == 1


def test_ctrl_z_stops_the_job_and_fg_continues_it(cli: Cli, terminal: Terminal) -> None:
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--", *python(READER))
    pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(CTRL_Z)
    assert terminal.line() == "[stopped SIGTSTP]"
    terminal.type(b"fg\n")
    terminal.type(b"hello\n")
    assert terminal.line() == "got hello"
    assert terminal.line() == "[exit 0]"


def test_a_job_stopped_past_its_ttl_does_not_go_on(cli: Cli, terminal: Terminal) -> None:
    """While stopped, the lease is not renewed; once continued, the command must do nothing more."""
    script = "echo ready; read line; echo touched"
    start_job(cli, terminal, *LOCKFAST, "run", "a", "--ttl", "6", "--", "sh", "-c", script)
    run = pid_of(terminal)
    assert terminal.line() == "ready"
    command, _guardian = sorted(children_of(run))
    terminal.type(CTRL_Z)
    assert terminal.line() == "[stopped SIGTSTP]"
    cli.hold("a")
    terminal.type(b"fg\n")
    assert "was lost" in terminal.line()
    assert terminal.line() == "[exit 76]"
    assert not is_alive(command)


def test_a_background_job_that_reads_is_stopped_until_fg(cli: Cli, terminal: Terminal) -> None:
    script = "echo ready; read line; echo got $line"
    start_job(cli, terminal, "--background", *LOCKFAST, "run", "a", "--", "sh", "-c", script)
    pid_of(terminal)
    assert terminal.line() == "ready"
    assert terminal.line() == "[stopped SIGTTIN]"
    terminal.type(b"fg\n")
    terminal.type(b"hello\n")
    assert terminal.line() == "got hello"
    assert terminal.line() == "[exit 0]"


PAGER = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
print(sys.stdin.readline(), end="", flush=True)
with open("/dev/tty") as keys:
    print("key", keys.readline(), end="", flush=True)
print(sys.stdin.read(), end="", flush=True)
"""


ONE_PAGE = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("page", flush=True)
time.sleep(1000)
"""
"""Not a shell that sleeps: a Ctrl-C between its fork and its exec would be lost."""


def test_a_pager_behind_us_reads_the_keys(cli: Cli, terminal: Terminal) -> None:
    pipe = quoted(*LOCKFAST, "run", "a", "--", sys.executable, "-c", ONE_PAGE)
    start_job(cli, terminal, "sh", "-c", f"{pipe} | {quoted(sys.executable, '-c', PAGER)}")
    pid_of(terminal)
    assert terminal.line() == "page"
    terminal.type(b"q\n")
    assert terminal.line() == "key q"
    terminal.type(CTRL_C)
    assert terminal.line() == "[exit 130]"


def test_a_command_in_a_pipe_reads_the_terminal_all_the_same(cli: Cli, terminal: Terminal) -> None:
    pipe = quoted(*LOCKFAST, "run", "a", "--", "sh", "-c", "echo ready; read line; echo got $line")
    start_job(cli, terminal, "sh", "-c", f"{pipe} | cat")
    pid_of(terminal)
    assert terminal.line() == "ready"
    terminal.type(b"hello\n")
    assert terminal.line() == "got hello"
    assert terminal.line() == "[exit 0]"


GIVING_IT_AWAY = """
import os
leave, gone = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(gone)
    os.read(leave, 1)
    os._exit(0)
os.setpgid(pid, pid)
os.tcsetpgrp(0, pid)
os.close(gone)
os.waitpid(pid, 0)
"""
"""The effect of a shell that is killed before it takes the terminal back from its job."""


@pytest.mark.parametrize(
    "command",
    [
        ("true",),
        ("sh", "-c", "kill -KILL $$"),
        ("sh", "-ic", "sleep 0"),
        python(GIVING_IT_AWAY),
    ],
    ids=["ended", "killed", "was a shell", "gave it away"],
)
def test_the_terminal_is_ours_again_afterwards(
    cli: Cli, terminal: Terminal, command: tuple[str, ...]
) -> None:
    script = f"{quoted(*LOCKFAST, 'run', 'a', '--', *command)}; read line; echo then $line"
    start_job(cli, terminal, "sh", "-c", script)
    pid_of(terminal)
    terminal.type(b"hello\n")
    while (line := terminal.line()) != "then hello":
        assert "[" not in line, line
    assert terminal.line() == "[exit 0]"
