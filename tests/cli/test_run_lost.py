"""What happens to the command when the lease is really lost."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import lockfast
from tests.cli.processes import HEARING, READ, Cli, Process, python, until

POLITE = (
    HEARING
    + """
for number in signals("SIGTERM"):
    print("stopping", flush=True)
    break
"""
)

STUBBORN_FAMILY = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: os.write(1, b"no\\n"))
pid = os.fork()
if pid:
    print("ready", flush=True)
while True:
    signal.pause()
"""

ONE_STUBBORN_CHILD = """
import os, signal, sys
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda number, frame: os.write(1, b"no\\n"))
    print("ready", flush=True)
while True:
    signal.pause()
"""

TELLING = (
    HEARING
    + """
for number in signals("SIGUSR1"):
    print("told", flush=True)
sys.exit(7)
"""
)


def revoke(cli: Cli, name: str) -> None:
    assert cli.run("revoke", name, "--reason", "fire drill", "--yes").returncode == 0


def shut_gate(cli: Cli) -> Process:
    """A process that blocks every write to the store, as a hanging one would."""
    script = (
        "import fcntl, sys; gate = open(sys.argv[1], 'r+'); fcntl.lockf(gate, fcntl.LOCK_EX, 1);"
        "print('shut', flush=True); sys.stdin.readline()"
    )
    keeper = cli.start_program(*python(script), f"{cli.path}-gate")
    assert keeper.line() == "shut"
    return keeper


def test_a_revoked_lock_stops_the_command_with_sigterm_and_gives_76(cli: Cli) -> None:
    holder = cli.start("run", "a", "--", *python(POLITE))
    assert holder.line() == "ready"
    revoke(cli, "a")
    assert holder.line() == "stopping"
    assert holder.exit_code() == 76
    complaint = holder.complaint()
    assert "fire drill" in complaint
    assert "the command was stopped" in complaint


def test_a_revoked_session_stops_the_command(cli: Cli) -> None:
    holder = cli.start("run", "a", "--", *python(POLITE))
    assert holder.line() == "ready"
    session = cli.show("a")["holders"][0]["session"]
    done = cli.run("revoke", "--session", session, "--reason", "fire drill", "--yes")
    assert done.returncode == 0
    assert holder.line() == "stopping"
    assert holder.exit_code() == 76


def test_who_ignores_sigterm_is_killed_after_the_grace_with_the_whole_group(cli: Cli) -> None:
    holder = cli.start("run", "a", "--grace", "0.3", "--", *python(STUBBORN_FAMILY))
    assert holder.line() == "ready"
    revoke(cli, "a")
    assert holder.rest() == "no\nno\n"  # both got the signal, and both have ended
    assert holder.exit_code() == 76


def test_run_ends_only_when_the_last_of_the_group_is_gone(cli: Cli) -> None:
    """The command itself ends; a process that it started does not."""
    holder = cli.start("run", "a", "--grace", "0.5", "--", *python(ONE_STUBBORN_CHILD))
    assert holder.line() == "ready"
    revoke(cli, "a")
    assert holder.line() == "no"
    assert holder.exit_code() == 76
    assert holder.popen.stdout is not None
    ready, _, _ = select.select([holder.popen.stdout], [], [], 0)
    assert ready, "somebody is left who could still write"
    assert holder.rest() == ""


def test_a_run_stopped_past_its_ttl_ends_its_command_when_it_wakes(cli: Cli) -> None:
    """Another client has the lock by then, with a greater token."""
    say_token = ("sh", "-c", "echo $LOCKFAST_FENCE; read line")
    holder = cli.start("run", "a", "--ttl", "5", "--", *say_token)
    old = int(holder.line())
    holder.signal(signal.SIGSTOP)
    waiter = cli.start("run", "a", "--", *say_token)
    new = int(waiter.line())
    assert new > old
    holder.signal(signal.SIGCONT)
    assert holder.rest() == ""
    assert holder.exit_code() == 76
    assert cli.show("a")["holders"][0]["token"] == new


def test_a_lease_that_cannot_be_renewed_ends_the_command_before_its_deadline(
    cli: Cli, tmp_path: Path
) -> None:
    """The last process of a stubborn group is dead before the store ends the lease."""
    fifo = tmp_path / "words"
    os.mkfifo(fifo)
    into_fifo = ("sh", "-c", 'exec "$@" >"$0"', str(fifo))
    options = ("--ttl", "4", "--grace", "1")
    holder = cli.start("run", "a", *options, "--", *into_fifo, *python(STUBBORN_FAMILY))
    with lockfast.connect(cli.url) as observer, fifo.open() as words:
        assert words.readline() == "ready\n"
        assert observer.inspect("a").holders
        gate = shut_gate(cli)
        assert words.read() == "no\nno\n"
        (claim,) = observer.inspect("a").holders
        assert claim.remaining > 0
        gate.write("open")
        assert gate.exit_code() == 0
    assert holder.exit_code() == 76


def test_keep_alives_that_succeed_never_stop_the_command(cli: Cli) -> None:
    """Not even with the shortest grace period that a TTL allows."""
    holder = cli.hold("a", "--ttl", "6", "--grace", "3")
    until(lambda: cli.live_sessions()[0]["renewals"] >= 4, "four keep-alives")
    holder.write("go")
    assert (holder.line(), holder.exit_code()) == ("got go", 0)


def test_on_lost_signal_tells_the_command_and_leaves_the_rest_to_it(cli: Cli) -> None:
    options = ("--on-lost", "signal", "--signal", "usr1", "--grace", "0")
    holder = cli.start("run", "a", *options, "--", *python(TELLING))
    assert holder.line() == "ready"
    revoke(cli, "a")
    assert holder.line() == "told"
    holder.write("go")
    assert (holder.exit_code(), holder.rest()) == (7, "")
    assert "the command was sent the signal" in holder.complaint()


def test_on_lost_ignore_lets_the_command_go_on(cli: Cli) -> None:
    holder = cli.hold("a", "--on-lost", "ignore")
    revoke(cli, "a")
    assert cli.hold("a").pid != holder.pid
    holder.write("go")
    assert (holder.line(), holder.exit_code()) == ("got go", 0)
    assert "fire drill" in holder.complaint()


def test_a_waiter_whose_session_was_revoked_stands_in_line_again(cli: Cli) -> None:
    holder = cli.hold("a")
    waiter = cli.start("run", "a", "--", *READ)
    cli.wait_for_queue("a", 1)
    session = cli.show("a")["waiting"][0]["session"]
    cli.run("revoke", "--session", session, "--reason", "fire drill", "--yes")
    until(
        lambda: [w["session"] for w in cli.show("a")["waiting"] if w["session"] != session],
        "it to stand in line again",
    )
    holder.write("go")
    assert waiter.line() == "ready"
    waiter.write("go")
    assert waiter.exit_code() == 0


def test_a_lock_file_that_is_deleted_stops_the_command(cli: Cli) -> None:
    """Its locks are gone with it, and it may have been created again."""
    holder = cli.start("run", "a", "--ttl", "6", "--", *python(POLITE))
    assert holder.line() == "ready"
    for path in Path(cli.path.parent).glob("locks.db*"):
        path.unlink()
    assert holder.line() == "stopping"
    assert holder.exit_code() == 76
