"""LOCKFAST_HISTORY: requests and replies of real processes, judged by `lockfast check`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.cli import main
from lockfast.sim.history import Entry, read_history, write_history
from lockfast.sim.judge import judge_file
from tests.history import roles
from tests.history.together import contended, work_together
from tests.processes.crew import Crew, crew_in

PROCESSES = 8


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    yield from crew_in(tmp_path)


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "history.jsonl"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(path))
    return path


def spoil(history: Path, entries: list[Entry], to: str) -> Path:
    path = history.with_name(to)
    write_history(entries, path)
    return path


def test_eight_processes_on_one_file_are_judged_clean(
    crew: Crew, history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judgement = contended(crew, history, PROCESSES, 40)
    asked = [entry for entry in judgement.entries if entry.get("ask") == "acquire"]
    assert len(asked) >= PROCESSES * 40 * 4 // 6
    assert "0 promises broken" in capsys.readouterr().out


def test_a_spoilt_copy_is_refused(crew: Crew, history: Path) -> None:
    """Whichever promise is broken in it by hand."""
    work_together([crew.start(roles.everything, seed, 30) for seed in range(4)])
    for how, spoilt in spoilt_copies(read_history(history)).items():
        assert main(["check", str(spoil(history, spoilt, f"{how}.jsonl"))]) == 1, how


def spoilt_copies(entries: list[Entry]) -> dict[str, list[Entry]]:
    """One token granted twice, two tokens swapped, a lease that overlaps the next one."""
    places = {e["op"]: e["places"][0] for e in entries if e.get("ask") == "acquire"}
    of_a = [
        i
        for i, e in enumerate(entries)
        if e.get("got") == "granted" and places.get(e["op"], [""] * 2)[1] == "a"
    ]
    of_a.sort(key=lambda i: entries[i]["at"])
    first, last = of_a[0], of_a[-1]

    def changed(i: int, **about: Any) -> list[Entry]:
        return [{**e, **about} if at == i else e for at, e in enumerate(entries)]

    swapped = changed(first, token=entries[last]["token"])
    swapped[last] = {**swapped[last], "token": entries[first]["token"]}
    over = next(
        i
        for i, e in enumerate(entries)
        if e.get("got") == "over" and e["op"] == entries[first]["op"]
    )
    return {
        "token-twice": changed(last, token=entries[first]["token"]),
        "tokens-exchanged": swapped,
        "overlapping": changed(over, at=entries[last]["at"] + 1),
    }


def test_a_torn_file_is_no_history(
    crew: Crew, history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.client().lock("a").acquire().release()
    text = history.read_text(encoding="utf-8")
    torn = history.with_name("torn.jsonl")
    torn.write_text(text[:-20], encoding="utf-8")
    assert main(["check", str(torn)]) == 2
    assert "not a JSON object" in capsys.readouterr().err
    torn.write_text('{"at": 1, "got": "granted"}\n', encoding="utf-8")
    assert main(["check", str(torn)]) == 2
    capsys.readouterr()
    absent = history.with_name("absent.jsonl")
    assert main(["check", str(absent)]) == 2
    assert (
        capsys.readouterr().err == f"lockfast: {absent} cannot be read: No such file or directory\n"
    )


def test_a_page_that_cannot_be_written_is_wrong_usage(
    crew: Crew, history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crew.client().lock("a").acquire().release()
    page = history.with_name("no") / "page.html"
    assert main(["check", str(history), "--html", str(page)]) == 2
    assert (
        capsys.readouterr().err
        == f"lockfast: {page} cannot be written: No such file or directory\n"
    )


def test_both_faces_record(crew: Crew, history: Path) -> None:
    children = [crew.start(roles.on_a_loop, 10) for _ in range(2)]
    children.append(crew.start(roles.everything, 1, 30))
    work_together(children)
    judgement = judge_file(history)
    assert judgement.problems == []
    assert sum(entry.get("got") == "granted" for entry in judgement.entries) >= 80


def test_a_killed_holder_is_followed_and_that_is_no_overlap(crew: Crew, history: Path) -> None:
    """Its lease would have lasted a minute, but its process was seen to die."""
    holder = crew.start(roles.hold_for_ever)
    holder.hears("held")
    holder.kill()
    with lockfast.connect(crew.url) as client:
        client.lock("a").acquire().release()
    # Closed: every client that saw the death has recorded it by now.
    judgement = judge_file(history)
    assert judgement.problems == []
    assert sum(entry.get("got") == "granted" for entry in judgement.entries) == 2


def test_parent_and_child_of_a_fork_record_side_by_side(crew: Crew, history: Path) -> None:
    forked = crew.start(roles.fork_inside)
    assert forked.hears("done") == ["0"]
    judgement = judge_file(history)
    assert judgement.problems == []
    assert sum(entry.get("got") == "granted" for entry in judgement.entries) == 11


def test_the_memory_store_records_too(history: Path) -> None:
    with lockfast.connect("memory://") as client:
        with client.lock("a") as lease:
            assert client.lock("a").try_acquire() is None
        with client.rwlock("a").read():
            pass
    judgement = judge_file(history)
    assert judgement.problems == []
    assert judgement.undecided == []
    told = [e["token"] for e in judgement.entries if e.get("got") == "granted"]
    assert told[0] == lease.token
    assert [e["got"] for e in judgement.entries if e.get("got") == "busy"] == ["busy"]


def test_a_file_that_cannot_be_written_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKFAST_HISTORY", str(tmp_path / "absent" / "history.jsonl"))
    with pytest.raises(lockfast.StoreMisconfiguredError, match="LOCKFAST_HISTORY"):
        lockfast.connect("memory://")


@pytest.mark.parametrize("wanted", [False, True])
def test_without_the_variable_nothing_of_it_is_there(wanted: bool, tmp_path: Path) -> None:
    script = (
        "import sys, lockfast\n"
        "with lockfast.connect('memory://') as client:\n"
        "    client.lock('a').acquire().release()\n"
        "    print(type(client._core.store).__module__)\n"
        "print('lockfast.stores.history_recorder' in sys.modules, 'asimpy' in sys.modules)\n"
    )
    path = str(tmp_path / "h.jsonl") if wanted else ""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LOCKFAST_HISTORY": path, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    module, loaded = done.stdout.splitlines()
    assert module == ("lockfast.stores.recorded" if wanted else "lockfast.stores.memory")
    assert loaded == f"{wanted} False"
