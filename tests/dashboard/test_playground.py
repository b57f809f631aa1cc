"""The playground's panel in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from lockfast.playground.panel import make_panel
from lockfast.playground.scene import Scene
from lockfast.playground.story import STEPS
from tests.dashboard import chromium
from tests.dashboard.test_views import serious
from tests.servers.lockserver import ServerThread

Opener = Callable[..., Page]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(3)
    made.story.caption_s = 0.0
    made.do("set", {"ttl": 2, "work": 0.2})
    yield made
    made.close()


@pytest.fixture
def base(scene: Scene) -> Iterator[str]:
    with ServerThread(scene.url, panels=[make_panel(scene)]) as server:
        yield server.base


def test_the_classic_failure_is_shown(base: str, open_page: Opener) -> None:
    page = open_page(base)
    page.get_by_role("button", name="Show me the classic failure").click()
    page.get_by_text(f"{len(STEPS)} of {len(STEPS)}.").wait_for()
    unfenced, fenced = (page.get_by_label(f"The {name} balance") for name in ("unfenced", "fenced"))
    unfenced.get_by_text("Corrupted: 1 job was overwritten").wait_for()
    fenced.get_by_text("Correct: 1 stale write refused").wait_for()
    assert unfenced.locator("tbody tr").first.inner_text().split("\t")[:2] == ["A", "1"]
    assert "stale" in fenced.locator("tbody tr").first.inner_text()
    assert page.locator(".play-drawing svg .bad-fill").count() > 0
    assert page.locator("ul.legend svg").count() == 7


def test_step_by_step_with_the_keyboard_alone(base: str, open_page: Opener, scene: Scene) -> None:
    page = open_page(base)
    page.get_by_role("button", name="Show me the classic failure").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # step by step
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_text("1 of 7.").wait_for()
    current = page.locator("[aria-current=step]")
    assert current.inner_text() == STEPS[0].title
    page.get_by_role("button", name="Next step").focus()
    page.keyboard.press("Enter")
    page.get_by_text("2 of 7.").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    page.get_by_text("3 of 7.").wait_for()
    worker = page.get_by_label("Worker A", exact=True)
    worker.get_by_text("paused (is writing)").wait_for()
    worker.get_by_text("believes that it holds the lock, token 1").wait_for()
    assert not scene.unfenced.writes
    page.get_by_role("button", name="Reset the playground").click()
    page.get_by_text("The store says: the lock is free").wait_for()


def test_each_fault_of_a_worker(base: str, open_page: Opener, scene: Scene) -> None:
    scene.do("set", {"work": 20})
    page = open_page(base)
    worker = page.get_by_label("Worker A", exact=True)
    page.get_by_role("button", name="Start worker A").click()
    worker.get_by_text("holds the lock, token 1").wait_for()
    page.get_by_role("button", name="Pause worker A now").click()
    worker.get_by_text("paused (works)").wait_for()
    # The focus stays in the row when its button disappears.
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Resume worker A"
    page.get_by_role("button", name="Resume worker A").click()
    page.get_by_role("button", name="Cut off worker A").click()
    page.get_by_role("button", name="Reconnect worker A").click()
    page.get_by_label("Clock of worker A").select_option("2 × too fast")
    assert scene.wait_for(lambda: scene.workers["A"].faults.clock.rate == 2, 20)
    expect(page.locator("[data-worker=A] select")).to_have_value("2")
    page.get_by_role("button", name="Crash worker A").click()
    worker.get_by_text("crashed").wait_for()
    page.get_by_role("button", name="Start worker A").wait_for()


def test_sliders_set_ttl_and_work(base: str, open_page: Opener, scene: Scene) -> None:
    page = open_page(base)
    page.get_by_text("2.0 s").wait_for()
    page.get_by_label("TTL").fill("8")
    page.get_by_label("Work", exact=True).fill("3")
    page.get_by_label("workers check their lease").check()
    assert scene.wait_for(lambda: scene.settings == (8.0, 3.0, True), 20), scene.settings


def test_a_playground_that_has_ended_is_reported(open_page: Opener, scene: Scene) -> None:
    with ServerThread(scene.url, panels=[make_panel(scene)]) as server:
        page = open_page(server.base)
        page.get_by_text("The store says").wait_for()
    page.get_by_text("The playground does not answer").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_telephone(base: str, open_page: Opener, scene: Scene, scheme: str) -> None:
    scene.do("play", {})
    page = open_page(base, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page.get_by_text("7 of 7.").wait_for()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(base: str, open_page: Opener, scene: Scene, scheme: str) -> None:
    """axe-core finds no serious violation, with workers in every state."""
    scene.do("play", {})
    page = open_page(base, color_scheme=scheme, bypass_csp=True)
    page.add_script_tag(path=str(chromium.HOME / "axe.min.js"))
    page.get_by_text("7 of 7.").wait_for()
    scene.do("set", {"work": 20, "ttl": 30})
    for worker in "AB":
        scene.do("start", {"worker": worker})
    page.get_by_label("Worker A", exact=True).get_by_text("holds the lock").wait_for()
    assert serious(page) == []
    scene.do("pause", {"worker": "A"})
    scene.do("crash", {"worker": "B"})
    page.get_by_label("Worker B", exact=True).get_by_text("crashed").wait_for()
    assert serious(page) == []
