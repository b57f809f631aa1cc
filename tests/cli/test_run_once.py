"""`lockfast run --once`: the same cron entry on many hosts."""

from __future__ import annotations

from tests.cli.processes import READ, Cli

WINDOW = ("--once", "--at-least", "5m")


def test_one_host_runs_and_the_others_skip(cli: Cli) -> None:
    first = cli.run("run", "nightly", *WINDOW, "--", "echo", "ran")
    assert (first.returncode, first.stdout) == (0, "ran\n")
    second = cli.run("run", "nightly", *WINDOW, "--", "echo", "ran")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")


def test_the_command_gets_its_token_and_its_exit_code_is_ours(cli: Cli) -> None:
    done = cli.run("run", "nightly", *WINDOW, "--", "sh", "-c", "echo $LOCKFAST_FENCE; exit 3")
    assert done.returncode == 3
    assert int(done.stdout) > 0


def test_with_wait_the_others_wait_and_learn_how_it_ended(cli: Cli) -> None:
    wait = (*WINDOW, "--wait")
    runner = cli.start("run", "migrate", *wait, "--", *READ)
    assert runner.line() == "ready"
    waiting = cli.start("run", "migrate", *wait, "--", "echo", "ran")
    runner.write("go")
    assert runner.exit_code() == 0
    assert (waiting.exit_code(), waiting.rest()) == (0, "")
    failed = cli.run("run", "other", *wait, "--", "false")
    assert failed.returncode == 1
    late = cli.run("run", "other", *wait, "--", "echo", "ran")
    assert (late.returncode, late.stdout) == (75, "")
    assert "failed at another host" in late.stderr


def test_options_that_make_no_sense_are_refused(cli: Cli) -> None:
    for options in (
        ("--once",),
        ("--wait",),
        ("--at-least", "5m"),
        ("--once", "--at-least", "5m", "--timeout", "3"),
        ("--once", "--at-least", "5m", "--at-most", "1m"),
    ):
        assert cli.run("run", "a", *options, "--", "true").returncode == 2
