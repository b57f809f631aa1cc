"""ls, show and sessions: output for people and for programs."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
from pathlib import Path

import lockfast
import lockfast.cli
from tests.cli.processes import LOCKFAST, Cli, until
from tests.cli.terminals import open_terminal, start_job


def columns(text: str, *names: str) -> list[list[str]]:
    """Return the cells below these headings, row by row."""
    header, *rows = text.splitlines()
    starts = [header.index(name) for name in names]
    return [[row[start:].split("  ")[0].strip() for start in starts] for row in rows]


def test_ls_says_who_holds_what_and_how_many_wait(cli: Cli) -> None:
    cli.hold("orders/42", "--owner", "alice")
    cli.start("run", "orders/42", "--", "true")
    cli.wait_for_queue("orders/42", 1)
    cli.hold("orders/7", "--owner", "bob the builder")
    cli.hold("reports", "--owner", "carol")
    found = columns(cli.run("ls").stdout, "NAME", "HOLDER", "WAITING")
    assert found == [
        ["orders/42", "alice", "1"],
        ["orders/7", "bob the builder", "-"],
        ["reports", "carol", "-"],
    ]
    assert columns(cli.run("ls", "orders/7").stdout, "HOLDER") == [["bob the builder"]]
    listed = json.loads(cli.run("ls", "orders/", "--json").stdout)
    assert [(each["name"], each["waiting_count"]) for each in listed] == [
        ("orders/42", 1),
        ("orders/7", 0),
    ]


def test_ls_of_nothing_is_an_empty_list(cli: Cli) -> None:
    done = cli.run("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"no lock is in use in {cli.url}\n"
    assert cli.run("ls", "--json").stdout == "[]\n"


def test_columns_stay_one_below_the_other_with_any_script(cli: Cli) -> None:
    cli.hold("日本", "--owner", "x")
    cli.hold("ab", "--owner", "y")
    header, narrow, wide = cli.run("ls").stdout.splitlines()
    at = header.index("HOLDER")
    assert narrow[at] == "y"
    assert wide[at - 2] == "x"  # two characters that take two columns each


def test_show_says_who_since_when_until_when_who_waits_and_how_to_break_it(cli: Cli) -> None:
    cli.hold("it's here", "--owner", "alice")
    cli.start("run", "it's here", "--owner", "bob", "--priority", "3", "--", "true")
    cli.wait_for_queue("it's here", 1)
    holder = cli.show("it's here")["holders"][0]
    done = cli.run("show", "it's here")
    assert done.returncode == 0
    first, *lines = done.stdout.splitlines()
    assert first == "it's here is held"
    facts = dict(line.split(maxsplit=1) for line in lines[:5])
    assert facts["holder"] == "alice"
    assert facts["token"] == str(holder["token"])
    assert facts["session"] == holder["session"]
    assert facts["ends"].endswith(" s unless it is renewed")
    at = lines.index("waiting (1):")
    assert lines[at + 2].split()[:2] == ["1", "bob"]
    assert lines[-1].strip() == "lockfast revoke --reason '…' 'it'\"'\"'s here'"


def test_the_command_to_break_it_names_the_store_it_was_found_in(cli: Cli) -> None:
    cli.hold("a")
    elsewhere = {"LOCKFAST_URL": "memory://"}
    done = cli.run("show", "a", "--url", cli.url, environment=elsewhere)
    assert f"lockfast revoke --url {cli.url} --reason '…' a\n" in done.stdout


def test_show_of_a_free_lock_says_so_and_gives_1(cli: Cli) -> None:
    done = cli.run("show", "a")
    assert (done.returncode, done.stdout) == (1, "a is free\n")
    done = cli.run("show", "a", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["holders"] == []


def test_a_holder_that_expired_does_not_count_as_one(cli: Cli) -> None:
    """Its claim is removed only when another client requests the lock."""
    with lockfast.connect(cli.url) as observer:
        holder = cli.hold("a", "--ttl", "4")
        holder.popen.kill()
        until(lambda: observer.inspect("a").holders[0].remaining == 0, "the lease to end")
    done = cli.run("show", "a")
    assert done.returncode == 1
    assert done.stdout.startswith("a is free\n")
    assert "expired" in done.stdout


def test_sessions_lists_the_living_and_with_all_the_ended(cli: Cli) -> None:
    cli.hold("a", "--owner", "alice", "--ttl", "20")
    assert cli.run("run", "b", "--owner", "bob", "--", "true").returncode == 0
    (alice,) = json.loads(cli.run("sessions", "--json").stdout)
    assert (alice["owner"], alice["ttl"], alice["claims"]) == ("alice", 20.0, 1)
    assert columns(cli.run("sessions").stdout, "SESSION", "OWNER", "STATE") == [
        [alice["session"], "alice", "alive"]
    ]
    everybody = columns(cli.run("sessions", "--all").stdout, "OWNER", "STATE")
    assert sorted(everybody) == [["alice", "alive"], ["bob", "ended: closed by its client"]]


def test_a_semaphore_shows_its_permits_and_no_token(cli: Cli) -> None:
    with (
        lockfast.connect(cli.url, owner="alice") as alice,
        lockfast.connect(cli.url, owner="bob") as bob,
    ):
        with alice.semaphore("api", limit=10).acquire(permits=3), bob.semaphore("api", limit=10):
            shown = cli.run("show", "api", "--kind", "semaphore").stdout
            as_json = json.loads(cli.run("show", "api", "--kind", "semaphore", "--json").stdout)
            listed = columns(cli.run("ls").stdout, "NAME", "HOLDER", "TOKEN")
    assert shown.startswith("semaphore api: 4 of 10 permits are in use\n")
    facts = [line.split() for line in shown.splitlines()]
    assert [fact[1] for fact in facts if fact[:1] == ["permits"]] == ["3", "1"]
    assert "token" not in shown
    assert [(claim["permits"], claim["token"]) for claim in as_json["holders"]] == [
        (3, None),
        (1, None),
    ]
    assert listed == [["api", "4 of 10: alice and 1 more", "-"]]


def test_a_name_in_use_as_another_kind_is_pointed_out(cli: Cli) -> None:
    with lockfast.connect(cli.url) as client, client.semaphore("--api", limit=2):
        done = cli.run("show", "--", "--api")
    hint = "a semaphore of this name is in use: lockfast show --kind semaphore -- --api"
    assert (done.returncode, done.stdout) == (1, f"--api is free\n{hint}\n")


def test_a_name_that_looks_like_an_option_is_not_taken_for_one(cli: Cli) -> None:
    """The suggested command revokes the lock of that name, not a session."""
    with lockfast.connect(cli.url) as client:
        bystander = client.lock("bystander").acquire()
        (session,) = (each.session for each in client.sessions())
        with lockfast.connect(cli.url) as other:
            lease = other.lock(f"--session={session}").acquire()
            shown = cli.run("show", "--", f"--session={session}").stdout.splitlines()[-1]
            words = shlex.split(shown.replace("…", "r"))
            assert words[0] == "lockfast"
            assert cli.run(*words[1:2], "--yes", *words[2:]).returncode == 0
            assert lease.lost.wait(30)
        bystander.check()
        bystander.release()


def test_text_of_others_cannot_take_over_the_terminal(cli: Cli) -> None:
    """A bidirectional override is legal in names and labels, and would hide what follows it."""
    evil = "evil\u202ename"
    with lockfast.connect(cli.url, owner=evil, metadata=evil) as client:
        lease = client.lock(evil).acquire()
        commands = [
            ["ls"],
            ["show", evil],
            ["sessions"],
            ["show", "--kind", "tree", evil],
            ["revoke", "--reason", "r", "--yes", evil],
            ["revoke", "--reason", "r", "--yes", "--session", evil],
            ["show", f"{evil}//"],
            ["run", evil, "--frobnicate", evil, "--", "true"],
        ]
        for command in commands:
            done = cli.run(*command)
            assert "\u202e" not in done.stdout + done.stderr, command
            assert "evil\\u202ename" in done.stdout + done.stderr, command
        assert lease.lost.wait(30)


def test_only_one_module_writes_to_the_terminal() -> None:
    """Everything else goes through formatting.py and json_output.py, which escape."""
    package = Path(lockfast.cli.__file__).parent
    may_print = {"formatting.py", "json_output.py", "completion.py"}
    for path in package.glob("*.py"):
        if path.name in may_print:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path.name}:{node.lineno}"


def test_columns_fit_the_terminal(cli: Cli) -> None:
    cli.environment["NO_COLOR"] = "1"
    cli.hold("orders/" + "x" * 50, "--owner", "a-host-with-a-long-name.example.com:12345:worker")
    for columns_wide in (80, 160):
        with open_terminal() as terminal:
            terminal.resize(columns_wide)
            start_job(cli, terminal, *LOCKFAST, "ls")
            lines = [terminal.line() for _ in range(4)]
        header, row = lines[1:3]
        titles = "NAME HOLDER HELD FOR ENDS IN WAITING" + " TOKEN" * (columns_wide > 80)
        assert header.split() == titles.split()
        assert len(row.rstrip()) <= columns_wide
        assert ("…" in row) == (columns_wide == 80)
        assert row.startswith("orders/x")
    through_a_pipe = cli.run("ls").stdout
    assert "x" * 50 in through_a_pipe
    assert "…" not in through_a_pipe


def test_any_name_can_be_printed_in_any_encoding(cli: Cli) -> None:
    cli.hold("résumé")
    done = cli.run("ls", environment={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "r\\xe9sum\\xe9" in done.stdout
    listed = json.loads(cli.run("ls", "--json").stdout)
    assert listed[0]["name"] == "résumé"


def test_a_closed_pipe_is_no_error_to_talk_about(cli: Cli) -> None:
    cli.hold("a")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*LOCKFAST, "ls"], stdout=writer, stderr=subprocess.PIPE, env=cli.environment, timeout=30
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_reading_commands_give_the_same_codes_for_a_store_that_fails(
    cli: Cli, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.touch(0o600)
    damaged.write_bytes(b"no database" * 1000)
    for url, code in [
        (f"sqlite://{damaged}", 69),
        ("sqlite:///proc/no/locks.db", 69),
        (f"sqlite://{tmp_path}", 2),
        ("nonsense", 2),
    ]:
        for command in (["ls"], ["show", "a"], ["sessions"], ["watch"]):
            done = cli.run(*command, "--url", url)
            assert (url, command, done.returncode) == (url, command, code)
            assert done.stderr.startswith("lockfast: ")
            assert done.stderr.count("\n") == 1


def test_an_interrupt_is_answered_without_a_traceback(cli: Cli) -> None:
    """`ls` waits here for a writer that never unlocks the gate of a new database."""
    script = (
        "import fcntl, sys; gate = open(sys.argv[1], 'w'); fcntl.lockf(gate, fcntl.LOCK_EX, 1);"
        "print('shut', flush=True); sys.stdin.readline()"
    )
    Path(f"{cli.path}-gate").touch(0o600)
    gate = cli.start_program("python3", "-c", script, f"{cli.path}-gate")
    assert gate.line() == "shut"
    looker = cli.start("ls")
    until(lambda: "sqlite" in Path(f"/proc/{looker.pid}/maps").read_text(), "it to open the file")
    looker.signal(2)
    assert looker.exit_code() == 130
    assert looker.complaint() == ""


def test_every_kind_is_listed_shown_and_revoked_by_its_kind(cli: Cli) -> None:
    with lockfast.connect(cli.url, owner="alice") as client:
        permit = client.semaphore("api", limit=3).acquire()
        lease = client.lock("api").acquire()
        found = columns(cli.run("ls").stdout, "KIND", "NAME", "HOLDER")
        assert found == [["lock", "api", "alice"], ["semaphore", "api", "1 of 3: alice"]]
        assert columns(cli.run("ls", "--kind", "semaphore").stdout, "KIND") == [["semaphore"]]
        shown = cli.run("show", "api", "--kind", "semaphore").stdout.splitlines()
        assert shown[0] == "semaphore api: 1 of 3 permits are in use"
        assert shown[-1].strip() == "lockfast revoke --kind semaphore --reason '…' api"
        done = cli.run("revoke", "api", "--kind", "semaphore", "--reason", "r", "--yes")
        assert done.returncode == 0
        assert permit.lost.wait(30)
        assert cli.run("show", "api").returncode == 0
        lease.release()
