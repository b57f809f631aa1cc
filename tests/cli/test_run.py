"""`lockfast run`: the command, its environment, and every exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.processes import LOCKFAST, READ, Cli, python


@pytest.mark.parametrize("code", [0, 1, 3, 76, 255])
def test_the_exit_code_is_that_of_the_command(cli: Cli, code: int) -> None:
    assert cli.run("run", "a", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize(("signal", "code"), [("TERM", 143), ("KILL", 137), ("USR1", 138)])
def test_a_command_killed_by_a_signal_gives_128_and_its_number(
    cli: Cli, signal: str, code: int
) -> None:
    assert cli.run("run", "a", "--", "sh", "-c", f"kill -{signal} $$").returncode == code


def test_the_command_is_told_its_lock_token_and_session(cli: Cli) -> None:
    """The values are those that other clients see."""
    script = 'echo "$LOCKFAST_LOCK $LOCKFAST_FENCE $LOCKFAST_SESSION $KEPT"; exec "$@"'
    done = cli.run(
        *("run", "orders/42", "--", "sh", "-c", script, "sh"),
        *(*LOCKFAST, "show", "orders/42", "--json"),
        environment={"KEPT": "as it was", "LOCKFAST_FENCE": "of an outer run"},
    )
    told, seen = done.stdout.splitlines()
    holder = json.loads(seen)["holders"][0]
    assert told == f"orders/42 {holder['token']} {holder['session']} as it was"


def test_the_token_rises_from_run_to_run(cli: Cli) -> None:
    say_token = ("run", "a", "--", "sh", "-c", "echo $LOCKFAST_FENCE")
    tokens = [int(cli.run(*say_token).stdout) for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_the_lock_is_held_while_the_command_runs_and_free_afterwards(cli: Cli) -> None:
    holder = cli.hold("a")
    assert cli.run("show", "a").returncode == 0
    holder.write("go")
    assert holder.rest() == "got go\n"
    assert holder.exit_code() == 0
    assert cli.run("show", "a").returncode == 1
    assert cli.live_sessions() == []


def test_a_waiting_run_starts_when_the_lock_is_given_back(cli: Cli) -> None:
    holder = cli.hold("a")
    waiter = cli.start("run", "a", "--", *READ)
    cli.wait_for_queue("a", 1)
    holder.write("go")
    assert waiter.line() == "ready"
    waiter.write("go")
    assert (holder.exit_code(), waiter.exit_code()) == (0, 0)


def test_arguments_behind_the_dashes_are_the_commands_alone(cli: Cli) -> None:
    arguments = ["--json", "--timeout", "x", "", "--", "run", "a b", "-h"]
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = cli.run("run", "a", "--", *python(script), *arguments)
    assert json.loads(done.stdout) == arguments


def test_the_command_has_no_descriptors_but_the_standard_ones(cli: Cli) -> None:
    script = "import os; print([n for n in range(3, 100) if os.path.exists(f'/proc/self/fd/{n}')])"
    assert cli.run("run", "a", "--", *python(script)).stdout == "[]\n"


def test_the_command_begins_with_default_signals(cli: Cli) -> None:
    """Python ignores SIGPIPE; `yes | head` under a lock must still end."""
    done = cli.run("run", "a", "--", "grep", "SigIgn\\|SigBlk", "/proc/self/status")
    assert [line.split()[1].strip("0") for line in done.stdout.splitlines()] == ["", ""]


@pytest.mark.parametrize("option", [["--no-wait"], ["--timeout", "0"], ["--timeout", "0.3"]])
def test_a_lock_that_is_not_obtained_gives_75(cli: Cli, option: list[str]) -> None:
    cli.hold("a")
    done = cli.run("run", "a", *option, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("lockfast: 'a' was not acquired")
    assert done.stderr.count("\n") == 1
    assert cli.show("a")["waiting_count"] == 0
    assert len(cli.live_sessions()) == 1


def test_a_store_that_cannot_be_reached_gives_69(cli: Cli) -> None:
    done = cli.run("run", "a", "--url", "sqlite:///proc/no/locks.db", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr.startswith("lockfast: sqlite:///proc/no/locks.db: ")


def test_a_store_that_denies_access_gives_77(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "shut"
    place.mkdir(mode=0o500)
    if os.geteuid() == 0:  # whom only a file system can refuse
        place = Path("/sys")
    done = cli.run("run", "a", "--url", f"sqlite://{place}/locks.db", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (77, "")
    assert "no right to write" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "COMMAND"),
        (["dance"], "dance"),
        (["run"], "NAME"),
        (["run", "a"], "put -- before CMD"),
        (["run", "a", "true"], "put -- before CMD"),
        (["run", "a", "--"], "no CMD"),
        (["run", "--", "true"], "NAME"),
        (["run", "a", "b", "--", "true"], "unrecognized arguments: b"),
        (["run", "a", "--tim", "1", "--", "true"], "--tim"),
        (["run", "a", "--timeout", "-1", "--", "true"], "-1"),
        (["run", "a", "--timeout", "nan", "--", "true"], "nan"),
        (["run", "a", "--timeout", "5x", "--", "true"], "'5x' is not a duration"),
        (["run", "a", "--timeout", "5m3", "--", "true"], "'5m3' is not a duration"),
        (["run", "a", "--timeout", "", "--", "true"], "'' is not a duration"),
        (["run", "a", "--timeout", "9" * 400, "--", "true"], "is not a duration"),
        (["run", "a", "--url", "memory://", "--url-file", "f", "--", "true"], "not allowed with"),
        (["run", "a", "--url-file", "/no/such/file", "--", "true"], "No such file"),
        (["completion", "tcsh"], "tcsh"),
        (["doctor", "--dump", "--repair"], "not allowed with"),
        (["reset"], "NAMESPACE"),
        (["reset", "a/b", "--yes"], "not a valid namespace"),
        (["run", "a", "--timeout", "1", "--no-wait", "--", "true"], "not allowed with"),
        (["run", "a", "--ttl", "0", "--", "true"], "0.1 seconds to 24 hours"),
        (["run", "a", "--priority", "1001", "--", "true"], "from -1000 to 1000"),
        (["run", "a", "--grace", "16", "--", "true"], "half of the ttl"),
        (["run", "a", "--signal", "USR1", "--", "true"], "--on-lost signal"),
        (["run", "a", "--on-lost", "signal", "--signal", "FUN", "--", "true"], "'FUN'"),
        (["run", "a", "--owner", "a\nb", "--", "true"], "control characters"),
        (["run", "a//b", "--", "true"], "is not a valid name"),
        (["run", "", "--", "true"], "is not a valid name"),
        (["run", "a", "--url", "locks.db", "--", "true"], "not a store URL"),
        (["run", "a", "--url", "ftp://x", "--", "true"], "no store for ftp://"),
        (["show", "a/../b"], "is not a valid name"),
        (["watch", "--after", "-1"], "-1"),
        (["revoke", "a"], "--reason"),
        (["revoke", "--reason", "r"], "NAME"),
        (["revoke", "a", "--session", "s", "--reason", "r"], "not allowed with"),
        (["revoke", "a", "--reason", " "], "must not be empty"),
    ],
)
def test_wrong_usage_gives_2_and_says_what_is_wrong(
    cli: Cli, arguments: list[str], complaint: str
) -> None:
    done = cli.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOCKFAST_TTL", "soon"),
        ("LOCKFAST_TTL", "1e9"),
        ("LOCKFAST_OWNER", "a\x1b[2J"),
        ("LOCKFAST_OWNER", "x" * 201),
        ("LOCKFAST_URL", "here"),
    ],
)
def test_a_wrong_value_in_the_environment_gives_2(cli: Cli, name: str, value: str) -> None:
    done = cli.run("run", "a", "--", "echo", "ran", environment={name: value})
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_a_command_that_cannot_run_is_refused_without_waiting_for_the_lock(
    cli: Cli, tmp_path: Path
) -> None:
    cli.hold("a")
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    for command, code in [
        ("no-such-command", 127),
        ("./no/such", 127),
        ("", 127),
        (str(plain), 126),
        (str(tmp_path), 126),
    ]:
        done = cli.run("run", "a", "--", command)
        assert (command, done.returncode) == (command, code)
        assert done.stderr.count("\n") == 1


def test_a_script_whose_interpreter_is_missing_gives_126(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/shell\n")
    script.chmod(0o755)
    done = cli.run("run", "a", "--", str(script))
    assert (done.returncode, done.stderr.count("\n")) == (126, 1)
    assert cli.run("show", "a").returncode == 1


def test_a_script_without_an_interpreter_is_run_by_the_shell(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$1"; exit 5\n')
    script.chmod(0o755)
    done = cli.run("run", "a", "--", str(script), "two words")
    assert (done.returncode, done.stdout) == (5, "two words\n")


def test_options_and_environment_say_who_we_are_and_for_how_long(cli: Cli) -> None:
    cli.environment |= {"LOCKFAST_OWNER": "the night shift", "LOCKFAST_TTL": "60"}
    cli.hold("a")
    cli.hold("b", "--owner", "bob", "--ttl", "45", "--priority", "7")
    found = {each["owner"]: each["ttl"] for each in cli.live_sessions()}
    assert found == {"the night shift": 60.0, "bob": 45.0}
    assert cli.show("b")["holders"][0]["priority"] == 7


def test_by_default_the_owner_is_host_pid_and_the_command(cli: Cli) -> None:
    holder = cli.hold("a")
    host, pid, program = cli.show("a")["holders"][0]["owner"].split(":")
    assert (host, pid, program) == (os.uname().nodename, str(holder.pid), "sh")


def test_without_a_url_the_locks_are_in_the_users_state_directory(cli: Cli, tmp_path: Path) -> None:
    del cli.environment["LOCKFAST_URL"]
    cli.environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    assert cli.run("run", "a", "--", "true").returncode == 0
    assert (tmp_path / "state" / "lockfast" / "locks.db").exists()
