"""The scenarios end as described, and the zombie without its guard ends badly."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from lockfast.cli import main
from lockfast.cli.help_texts import SIMULATE
from lockfast.sim.checker import grants_of
from lockfast.sim.scenarios import SCENARIOS, play
from lockfast.sim.timeline import page


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_story_ends_well(name: str) -> None:
    for seed in (1, 7):
        run, problems = play(name, seed)
        assert problems == []
        assert run.operations > 0


def test_the_zombie_is_refused_by_the_guard(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "zombie", "--seed", "7", "--no-html"]) == 0
    out = capsys.readouterr().out
    assert "refused, it is stale" in out
    assert "All promises kept" in out


def test_without_the_guard_its_write_gets_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "zombie.html"
    assert main(["simulate", "zombie", "--seed", "7", "--no-guard", "--html", str(html)]) == 1
    assert "an update is lost" in capsys.readouterr().out
    text = html.read_text(encoding="utf-8")
    assert "stale token 1 got through" in text
    assert 'class="bad-fill"' in text


def test_without_the_guard_a_split_brain_loses_an_update() -> None:
    assert play("split-brain", 7)[1] == []
    assert {problem.check for problem in play("split-brain", 7, fenced=False)[1]} == {"register"}


def test_who_looks_at_its_lease_after_a_pause_writes_nothing_stale() -> None:
    run, _ = play("pause", 3)
    writes = [entry for entry in run.entries if "write" in entry]
    assert [(entry["by"], entry["admitted"]) for entry in writes] == [("c2", True), ("c1", True)]
    assert [g.why for g in grants_of(run.entries) if g.by == "c1"] == ["deadline", "released"]


def test_the_help_names_every_scenario() -> None:
    listed = SIMULATE.split("SCENARIO is one of")[1].split("or a TOML file")[0]
    assert set(listed.split()) == set(SCENARIOS)


def test_a_dead_holder_is_followed_within_its_ttl() -> None:
    run, _ = play("crash", 3)
    crashed = next(entry["at"] for entry in run.entries if "fault" in entry)
    following = min(g.answered or 0 for g in grants_of(run.entries) if g.granted and g.by != "c1")
    assert crashed < following < crashed + 1_000_000


def test_a_deadlock_has_one_victim() -> None:
    run, _ = play("deadlock", 3)
    outcomes = [grant.outcome for grant in grants_of(run.entries)]
    assert sorted(outcomes) == ["deadlock", "granted", "granted", "granted"]


def test_the_urgent_is_served_before_the_patient() -> None:
    run, _ = play("priority", 3)
    order = [g.by for g in sorted(grants_of(run.entries), key=lambda g: g.token)]
    assert order == ["c1", "c4", "c5", "c2", "c3"]


def test_a_lost_reply_makes_no_second_claim() -> None:
    run, _ = play("lost-reply", 3)
    grants = sorted(grants_of(run.entries), key=lambda g: g.token)
    assert [grant.by for grant in grants] == ["c1", "c2"]
    assert all(grant.granted for grant in grants)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.outside += [value for key, value in attrs if key in ("src", "href") and value]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        return

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_page_needs_nothing_else(name: str) -> None:
    run, problems = play(name, 2)
    links = _Links()
    links.feed(page(run.entries, problems, title=name))
    assert links.outside == []
    assert links.open == []
