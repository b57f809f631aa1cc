"""watch: every event, in order, as it happens; gaps are reported."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

import lockfast
from lockfast.core.rows import LOG_KEPT
from tests.cli.processes import Cli, Process, until


def start_watch(cli: Cli, *arguments: str) -> Process:
    """Return a watch that is listening."""
    watcher = cli.start("watch", *arguments)
    owner = f":{watcher.pid}:"
    until(lambda: any(owner in each["owner"] for each in cli.live_sessions()), "it to listen")
    return watcher


def event_of(watcher: Process) -> Any:
    return json.loads(watcher.line())


def test_events_arrive_as_they_happen_one_object_per_line(cli: Cli) -> None:
    watcher = start_watch(cli, "orders/", "--json")
    holder = cli.hold("orders/42", "--owner", "alice")
    granted = event_of(watcher)
    assert (granted["what"], granted["name"], granted["owner"]) == (
        "granted",
        "orders/42",
        "alice",
    )
    assert granted["token"] == cli.show("orders/42")["holders"][0]["token"]
    cli.run("run", "elsewhere", "--", "true")
    holder.write("go")
    released = event_of(watcher)
    assert (released["what"], released["name"]) == ("released", "orders/42")
    assert released["position"] > granted["position"]


def test_a_watch_goes_on_after_a_position(cli: Cli) -> None:
    watcher = start_watch(cli, "--json")
    for name in "abc":
        cli.run("run", name, "--", "true")
    first = [event_of(watcher) for _ in range(3)]
    assert [(e["what"], e["name"]) for e in first] == [
        ("granted", "a"),
        ("released", "a"),
        ("granted", "b"),
    ]
    later = cli.start("watch", "--json", "--after", str(first[1]["position"]))
    assert event_of(later) == first[2]


def test_lines_for_people_name_event_lock_owner_and_token(cli: Cli) -> None:
    watcher = start_watch(cli)
    cli.run("run", "a", "--owner", "alice", "--", "true")
    _, what, name, owner, word, token = watcher.line().split()
    assert (what, name, owner, word) == ("granted", "a", "alice", "token")
    assert int(token) > 0


@pytest.mark.parametrize("as_json", [True, False])
def test_a_gap_is_told_with_the_present_state_and_the_watch_goes_on(
    cli: Cli, as_json: bool
) -> None:
    holder = cli.hold("kept", "--owner", "alice")
    with lockfast.connect(cli.url) as client:
        busy = client.lock("busy")
        for _ in range(LOG_KEPT // 2 + 200):
            busy.acquire().release()
    watcher = cli.start("watch", "--after", "1", *(["--json"] if as_json else []))
    if as_json:
        gap = event_of(watcher)
        assert (gap["what"], gap["after"]) == ("gap", 1)
        assert [lock["name"] for lock in gap["locks"]] == ["kept"]
        assert gap["locks"][0]["holders"][0]["owner"] == "alice"
        holder.write("go")
        event = event_of(watcher)
        assert (event["what"], event["name"]) == ("released", "kept")
        assert event["position"] == gap["position"] + 1
    else:
        assert watcher.line().startswith("-- events after position 1 are no longer kept")
        assert watcher.line().split()[:2] == ["NAME", "HOLDER"]
        assert watcher.line().split()[:2] == ["kept", "alice"]
        assert watcher.line().startswith("-- ")
        holder.write("go")
        assert watcher.line().split()[1:3] == ["released", "kept"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_and_its_session(
    cli: Cli, number: signal.Signals, code: int
) -> None:
    watcher = start_watch(cli)
    watcher.signal(number)
    assert (watcher.exit_code(), watcher.rest(), watcher.complaint()) == (code, "", "")
    assert cli.live_sessions() == []


def test_it_ends_with_its_reader_even_if_nothing_happens(cli: Cli) -> None:
    """`lockfast watch | head -1` must not wait for a second event."""
    watcher = start_watch(cli)
    assert watcher.popen.stdout is not None
    watcher.popen.stdout.close()
    assert watcher.exit_code() == 141
    assert watcher.complaint() == ""
