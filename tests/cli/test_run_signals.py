"""Signals to `lockfast run` go to the command, and its death does, too."""

from __future__ import annotations

import json
import os
import signal

import pytest

import lockfast
from tests.cli.processes import LOCKFAST, NAMING, READ, Cli, children_of, is_alive, python, until
from tests.logs import begin_log


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM", "USR1", "WINCH"])
def test_a_signal_reaches_the_command_exactly_once(cli: Cli, name: str) -> None:
    """Also one to the whole group, as `kill %1` and the terminal send it."""
    number = signal.Signals[f"SIG{name}"]
    holder = cli.start("run", "a", "--", *python(NAMING))
    assert holder.line() == "ready"
    holder.signal(number)
    assert holder.line() == number.name
    os.killpg(holder.pid, number)
    assert holder.line() == number.name
    holder.signal(signal.SIGUSR2)  # the next line shows that nothing came in between
    assert holder.line() == "SIGUSR2"
    holder.write("go")
    assert (holder.exit_code(), holder.rest()) == (9, "")


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "TERM"])
def test_a_command_that_dies_of_it_is_reported_so_and_the_lock_is_free(cli: Cli, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    holder = cli.start("run", "a", "--", *python("print('ready', flush=True); input()"))
    if number == signal.SIGINT:  # which Python would turn into an exception
        holder = cli.start("run", "b", "--", *READ)
    assert holder.line() == "ready"
    holder.signal(number)
    assert holder.exit_code() == 128 + number
    assert cli.run("show", "b" if number == signal.SIGINT else "a").returncode == 1


def test_a_signal_reaches_what_the_command_has_started(cli: Cli) -> None:
    """A shell that dies of it must not leave its children running without the lock."""
    holder = cli.start("run", "a", "--", "sh", "-c", "sh -c 'echo $$; read line'; echo after")
    worker = int(holder.line())
    holder.signal(signal.SIGTERM)
    assert holder.exit_code() == 143
    assert holder.rest() == ""
    assert not is_alive(worker)


def test_a_signal_that_was_ignored_from_the_start_stays_ignored(cli: Cli) -> None:
    """As under nohup, for `run` and for the command."""
    ignoring = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    holder = cli.start_program(*ignoring, *LOCKFAST, "run", "a", "--", *READ)
    assert holder.line() == "ready"
    os.killpg(holder.pid, signal.SIGHUP)
    command, _guardian = sorted(children_of(holder.pid))
    os.kill(command, signal.SIGHUP)
    holder.write("go")
    assert (holder.line(), holder.exit_code()) == ("got go", 0)


def test_an_ignored_signal_does_not_end_the_wait(cli: Cli) -> None:
    ignoring = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    holder = cli.hold("a")
    waiter = cli.start_program(*ignoring, *LOCKFAST, "run", "a", "--", *READ)
    cli.wait_for_queue("a", 1)
    waiter.signal(signal.SIGHUP)
    holder.write("go")
    assert waiter.line() == "ready"


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT"])
def test_a_signal_while_waiting_ends_the_wait_and_leaves_no_claim(cli: Cli, name: str) -> None:
    number = signal.Signals[f"SIG{name}"]
    cli.hold("a")
    waiter = cli.start("run", "a", "--", "echo", "ran")
    cli.wait_for_queue("a", 1)
    stand_by = children_of(waiter.pid)
    waiter.signal(number)
    assert waiter.exit_code() == 128 + number
    assert (waiter.rest(), waiter.complaint()) == ("", "")
    assert cli.show("a")["waiting_count"] == 0
    assert len(cli.live_sessions()) == 1
    assert not [pid for pid in stand_by if is_alive(pid)]


def test_a_stopped_command_keeps_its_lock_until_it_is_continued(cli: Cli) -> None:
    """Without a terminal the stop is not job control, so the lease is renewed."""
    holder = cli.hold("a", "--ttl", "4")
    command, _guardian = sorted(children_of(holder.pid))
    holder.signal(signal.SIGTSTP)
    until(lambda: _state(command) == "T", "the command to stop")
    renewals = cli.live_sessions()[0]["renewals"]
    until(lambda: cli.live_sessions()[0]["renewals"] > renewals + 3, "keep-alives")
    holder.signal(signal.SIGCONT)
    holder.write("go")
    assert (holder.line(), holder.exit_code()) == ("got go", 0)


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(") ")[2][0]


STUBBORN = """
import signal, sys
for name in ("HUP", "INT", "TERM"):
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.readline()
print("survived", flush=True)
"""


def test_killing_run_kills_the_command_and_the_lock_stays_for_its_ttl(cli: Cli) -> None:
    """No client may start before the command is certainly gone: the store waits for the TTL."""
    with lockfast.connect(cli.url) as client:
        beginning = begin_log(client)
    # Long enough to start two programs, however busy the machine is.
    holder = cli.start("run", "a", "--ttl", "12", "--", *python(STUBBORN))
    assert holder.line() == "ready"
    before = cli.show("a")["holders"][0]
    holder.signal(signal.SIGKILL)
    assert holder.rest() == ""  # the end of its output: the command has ended, too
    assert cli.show("a")["holders"][0]["token"] == before["token"]
    assert cli.run("run", "a", "--no-wait", "--", "true").returncode == 75
    heir = cli.run("run", "a", "--timeout", "60", "--", "sh", "-c", "echo $LOCKFAST_FENCE")
    assert int(heir.stdout) > before["token"]
    watcher = cli.start("watch", "--after", str(beginning), "--json")
    events = [json.loads(watcher.line()) for _ in range(4)]
    (ended,) = (each for each in events if each["what"] == "expired")
    assert (ended["token"], ended["detail"]) == (before["token"], "expired")


def test_killing_run_leaves_a_command_that_may_go_on_without_the_lock(cli: Cli) -> None:
    holder = cli.start("run", "a", "--ttl", "0.5", "--on-lost", "ignore", "--", *python(STUBBORN))
    assert holder.line() == "ready"
    holder.signal(signal.SIGKILL)
    assert holder.exit_code() == -signal.SIGKILL
    holder.write("go")
    assert holder.rest() == "survived\n"


def test_killing_run_while_it_waits_leaves_no_process(cli: Cli) -> None:
    cli.hold("a")
    waiter = cli.start("run", "a", "--", "echo", "ran")
    cli.wait_for_queue("a", 1)
    standing_by = children_of(waiter.pid)
    assert len(standing_by) == 2  # the future command, and the guardian
    waiter.signal(signal.SIGKILL)
    assert waiter.rest() == ""
    for pid in standing_by:
        until(lambda pid=pid: not is_alive(pid), "a process that stood by to end")  # type: ignore[misc]
