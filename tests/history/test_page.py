"""The page of a recorded history: no elements overlap."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import main
from lockfast.sim.story import names_of


def test_leases_held_at_the_same_time_are_drawn_one_below_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, page = tmp_path / "history.jsonl", tmp_path / "page.html"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    with lockfast.connect("memory://page") as client:
        with client.lock("a"), client.lock("b"), client.lock("c"):
            pass
        with client.lock("a"):
            pass
    assert main(["check", str(history), "--html", str(page)]) == 0
    text = page.read_text()
    bars = [
        tuple(map(float, found))
        for found in re.findall(
            r'<rect class="s\d" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"',
            text.partition('<ul class="legend">')[0],
        )
    ]
    assert len(bars) == 4
    for i, (x, y, width, height) in enumerate(bars):
        for left, top, wide, high in bars[i + 1 :]:
            apart = x + width <= left + 2 or left + wide <= x + 2
            assert apart or y + height <= top + 0.2 or top + high <= y + 0.2
    assert text.count('<li><svg width="26"') == 12  # nine kinds of marks, three locks


def test_lanes_are_named_after_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, page = tmp_path / "history.jsonl", tmp_path / "page.html"
    monkeypatch.setenv("LOCKFAST_HISTORY", str(history))
    for owner in ("billing-1", "<b>&"):
        with lockfast.connect("memory://lanes", owner=owner) as client, client.lock("a"):
            pass
    assert main(["check", str(history), "--html", str(page)]) == 0
    text = page.read_text()
    assert re.findall(r'<text x="8"[^>]*>([^<]*)<', text) == ["&lt;b&gt;&amp;", "billing-1"]


def test_lanes_of_one_owner_are_numbered() -> None:
    asks = [
        {"at": 1, "op": op, "by": by, "ask": "acquire", "owner": "worker", "places": []}
        for op, by in ((1, "s/thread-1"), (2, "s/thread-2"))
    ]
    assert names_of(asks) == {"s/thread-1": "worker #1", "s/thread-2": "worker #2"}
