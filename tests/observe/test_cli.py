"""`lockfast stats`, `report` and `deadlocks --graph`, and colours."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import lockfast
from lockfast.cli.app import main
from lockfast.cli.formatting import ColouredLine, table
from lockfast.flow.wait_graph import Waiter, WaitGraph, WaitsFor
from lockfast.telemetry.graphs import as_dot, as_json, as_mermaid, as_text


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[lockfast.Client]:
    url = f"sqlite://{tmp_path}/locks.db"
    monkeypatch.setenv("LOCKFAST_URL", url)
    with lockfast.connect(url, owner="me") as client:
        watch = client.watch()
        watch.close()
        client.inspect("x")
        yield client


def waiting(client: lockfast.Client, name: str) -> threading.Thread:
    def work() -> None:
        client.lock(name).acquire().release()

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + 30
    while not client.inspect(name).waiting_count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return thread


@pytest.mark.parametrize("words", [["stats"], ["report", "--html", "page.html"]])
def test_a_store_without_a_log(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--url", "quorum+memory://3/without-a-log"]) == 2
    said = capsys.readouterr()
    assert "keeps no log of events; poll instead" in said.err
    assert len((said.out + said.err).splitlines()) == 1


def test_stats_of_a_store(client: lockfast.Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--for", "0.1s", "--json"]) == 0  # from here on the log is written
    capsys.readouterr()
    lease = client.lock("orders/1").acquire()
    thread = waiting(client, "orders/1")
    with pytest.raises(lockfast.AcquireTimeoutError):
        client.lock("orders/1").acquire(timeout=0.05)
    lease.release()
    thread.join()
    assert main(["stats", "--for", "0.3s", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    figures = found["overall"]["1m"]
    assert (figures["acquires"], figures["granted"]) == (3, 2)
    assert (figures["contended"], figures["timeouts"]) == (2, 1)
    assert figures["hold"]["count"] == 2
    assert figures["acquisition"]["p99"] > 0
    assert found["by_prefix"].keys() == {"orders"}
    assert main(["stats", "--for", "0.1s"]) == 0
    assert re.search(r"orders +1m +3 +67%", capsys.readouterr().out)


class Checked(HTMLParser):
    """Fails on unclosed tags, and on references to other hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {name for name, _ in attrs} & {"src", "href"}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_from_the_store_and_from_a_file(
    client: lockfast.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["stats", "--for", "0.1s", "--json"])
    after = client.watch(kind=None, after=0)
    lease = client.lock("<b>&orders").acquire()
    thread = waiting(client, "<b>&orders")
    client.revoke("<b>&orders", reason="<i>stuck")
    thread.join()
    assert lease.lost.wait(30)
    page = tmp_path / "page.html"
    assert main(["report", "--html", str(page), "--for", "0.2s"]) == 0
    text = page.read_text(encoding="utf-8")
    checked = Checked()
    checked.feed(text)
    assert not checked.open
    assert "&lt;b&gt;&amp;orders" in text
    assert "1 lease lost" in text
    assert "<td>revoked: &lt;i&gt;stuck</td>" in text
    assert "&lt;i&gt;stuck" in text
    events = tmp_path / "events.jsonl"
    with events.open("w", encoding="utf-8") as file:
        try:
            found = [next(after) for _ in range(4)]
        except lockfast.WatchGapError as gap:
            after.close()
            after = client.watch(kind=None, after=gap.oldest - 1)
            found = [next(after) for _ in range(4)]
        after.close()
        for event in found:
            print(json.dumps(event._asdict()), file=file)
    again = tmp_path / "again.html"
    assert main(["report", "--from", str(events), "--html", str(again)]) == 0
    assert "1 lease lost" in again.read_text(encoding="utf-8")
    capsys.readouterr()


def test_a_report_from_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history.jsonl"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db", owner="me") as client:
        lease = client.lock("a").acquire()
        thread = waiting(client, "a")
        lease.release()
        thread.join()
    page = tmp_path / "page.html"
    assert main(["report", "--from", str(history), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "1 lock, 2 grants" in text
    assert 'class="waiting"' in text
    capsys.readouterr()


def test_files_that_are_neither_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text('{"what": "granted"}\n')
    assert main(["report", "--from", str(wrong), "--html", str(tmp_path / "p.html")]) == 2
    assert "line 1: not an event" in capsys.readouterr().err
    assert main(["report", "--from", str(tmp_path / "no"), "--html", "p.html"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_who_waits_for_whom(client: lockfast.Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deadlocks", "--graph", "text"]) == 0
    assert capsys.readouterr().out == "nobody waits\n"
    with client.lock("orders/1"):
        thread = waiting(client, "orders/1")
        graph = client.wait_graph()
        assert main(["deadlocks", "--graph", "text"]) == 0
        text = capsys.readouterr().out
        assert main(["deadlocks", "--graph", "json"]) == 0
        plain = json.loads(capsys.readouterr().out)
    thread.join()
    (edge,) = graph.edges
    assert (edge.name, edge.blocker_holds, edge.deadlocked) == ("orders/1", True, False)
    assert re.search(r"me \(.*\)\n  └ me \(.*\) waits .* s for orders/1\n", text)
    assert plain["edges"][0]["blocker"]["owner"] == "me"
    assert client.wait_graph("other/").edges == ()


def edges(*pairs: tuple[str, str], deadlocked: bool = False, holds: bool = True) -> WaitGraph:
    return WaitGraph(
        tuple(
            WaitsFor(
                Waiter(waiter, "t", "s"),
                Waiter(blocker, "t", "s"),
                "lock",
                'a"b',
                "exclusive",
                1.0,
                holds,
                17,
                deadlocked,
            )
            for waiter, blocker in pairs
        )
    )


def test_graphs_in_other_languages() -> None:
    graph = edges(("x", "y"), ("y", "x"), deadlocked=True)
    assert as_text(graph).count("DEADLOCK") == 2
    dot = as_dot(graph)
    assert 'n0 -> n1 [label="a\\"b", color="red"];' in dot
    mermaid = as_mermaid(graph)
    assert 'n0 -->|"a#34;b"| n1' in mermaid
    assert "linkStyle 0,1 stroke:red" in mermaid
    assert json.loads(as_json(graph))["edges"][0]["deadlocked"] is True
    assert as_text(edges()) == ""


def test_a_long_chain_is_drawn_without_recursion() -> None:
    chain = edges(*((f"w{n:05}", f"w{n + 1:05}") for n in range(3000)), holds=False)
    assert len(as_text(chain).splitlines()) == 3001


def test_colours_are_for_terminals_only() -> None:
    header, rows = ["NAME", "WAITING", "STATE"], [["a\x1b[31m", "3", "alive"]]
    plain = list(table(header, rows))
    assert "\x1b" not in "".join(plain)
    painted = list(table(header, rows, colour=True))
    assert all(isinstance(line, ColouredLine) for line in painted)
    assert "\x1b[33m3" in painted[1]
    assert "\\x1b[31m" in painted[1]
    assert [re.sub(r"\x1b\[\d+m", "", line).rstrip() for line in painted] == plain


def test_log_lines_of_the_command_line_as_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import os
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "lockfast", "ls", "--url", "redis://127.0.0.1:1"],
        env={**os.environ, "LOCKFAST_LOG": "json"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 69
    line = json.loads(done.stderr.splitlines()[0])
    assert line["event"] == "StoreUnreachable"
    assert line["level"] == "warning"
