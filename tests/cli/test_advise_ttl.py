"""lockfast advise-ttl on histories of real processes: stopped, cut off from the store, and live."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import main
from tests.cli.processes import ROOT, Cli, Process, python, until
from tests.servers.redis import RedisServer

HOLDER = """
import sys, lockfast
client = lockfast.connect(ttl=0.9)
with client.lock("a") as lease:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        lease.check()
    except lockfast.LeaseLostError:
        pass
    else:
        lease.release()
client.close()
"""
RECORDED = ROOT / "tests" / "history" / "worker.jsonl"
PAGE = ROOT / "docs" / "ttl.md"


def start_holder(cli: Cli, history: Path) -> Process:
    cli.environment["LOCKFAST_HISTORY"] = str(history)
    holder = cli.start_program(*python(HOLDER))
    assert holder.line() == "ready"
    del cli.environment["LOCKFAST_HISTORY"]
    return holder


def keep_alives(history: Path) -> int:
    return history.read_text().count('"lives"')


def advice(cli: Cli, *arguments: str) -> dict[str, object]:
    done = cli.run("advise-ttl", *arguments, "--json")
    assert done.stderr == ""
    assert done.returncode == 1  # these recordings are short
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_process_stopped_past_its_ttl(cli: Cli, tmp_path: Path) -> None:
    """Every TTL up to the real one would have lost the lease; the length of the pause is known."""
    history = tmp_path / "history.jsonl"
    holder = start_holder(cli, history)
    until(lambda: keep_alives(history) > 2, "keep-alives")
    holder.signal(signal.SIGSTOP)
    with lockfast.connect(cli.url, death_watch=False) as client:
        with client.lock("a").acquire(timeout=60):  # granted once the lease has expired
            holder.signal(signal.SIGCONT)
        holder.write("go on")
        assert holder.popen.wait(60) == 1  # the block ended with LeaseLostError
    found = advice(cli, str(history), "--candidate", "0.3", "--candidate", "0.9")
    assert [each["lost"] for each in found["candidates"]] == [1, 1]  # type: ignore[attr-defined]
    stall = found["stall_max"]
    assert isinstance(stall, dict)
    assert (stall["cause"], found["lost"], found["cut_off"]) == ("pause", 1, 0)
    assert stall["seconds"] > 0.5


def test_an_outage_of_the_store_longer_than_the_ttl(cli: Cli, tmp_path: Path) -> None:
    """The client gave up: the history does not show how long the outage lasted, and the output says
    so."""
    history = tmp_path / "history.jsonl"
    with RedisServer() as redis:
        cli.environment["LOCKFAST_URL"] = redis.url()
        holder = start_holder(cli, history)
        until(lambda: keep_alives(history) > 2, "keep-alives")
        redis.kill()
        until(lambda: '"ends"' in history.read_text(), "the end of the session")
        holder.write("go on")
        holder.popen.wait(60)
    found = advice(cli, str(history), "--candidate", "0.9", "--candidate", "60")
    stall = found["stall_max"]
    assert isinstance(stall, dict)
    assert stall["cause"] == "failures"
    assert found["failures"] != 0
    lost, unknown = found["candidates"]  # type: ignore[misc]
    assert lost["lost"] == 1  # type: ignore[has-type]
    # On a busy machine the client may notice later than a paused one would: then it is known.
    assert unknown["unknown"] == (1 if stall["at_least"] else 0)  # type: ignore[has-type]


def test_it_measures_a_store(cli: Cli) -> None:
    found = advice_of_live(cli)
    assert found["sessions"] == 1
    assert found["leases"] == 1
    assert "too little data" in str(found["reason"])


def advice_of_live(cli: Cli) -> dict[str, object]:
    done = cli.run("advise-ttl", "--for", "1500ms", "--ttl", "900ms", "--json")
    assert done.stderr.startswith("measuring for 1.5 s"), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    assert not cli.live_sessions()
    return found


def test_an_interrupt_ends_the_measuring_and_the_figures_are_printed(cli: Cli) -> None:
    measuring = cli.start("advise-ttl", "--for", "10m", "--ttl", "900ms")
    until(cli.live_sessions, "a session")
    measuring.signal(signal.SIGINT)
    assert "too little data" in measuring.rest()
    assert measuring.exit_code() == 1


def test_an_unreachable_store_is_an_error(cli: Cli) -> None:
    done = cli.run("advise-ttl", "--url", "redis://127.0.0.1:1", "--for", "1s")
    assert done.returncode == 69


def test_a_file_that_is_no_history_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"at":1,"lives":"s","until":5}\n')
    assert main(["advise-ttl", str(file)]) == 2
    assert "record the history again" in capsys.readouterr().err
    file.write_text("nothing\n")
    assert main(["advise-ttl", str(file)]) == 2


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """For a recording of real processes, in 79 columns."""
    (shown,) = re.findall(
        r"\$ lockfast advise-ttl worker\.jsonl\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert main(["advise-ttl", str(RECORDED)]) == 0
    printed = capsys.readouterr().out
    assert printed == shown
    assert max(map(len, printed.splitlines())) <= 79
