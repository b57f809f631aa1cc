"""Workers, their faults, and the effects on the two resources."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lockfast.playground.scene import CommandError, Scene
from lockfast.playground.story import STEPS
from lockfast.playground.worker import Stage, Worker

SOON_S = 30.0


def until(scene: Scene, what: Any) -> None:
    assert scene.wait_for(what, SOON_S), scene.state()


def holds(scene: Scene, worker: Worker) -> bool:
    claim = scene.record.holder()
    return claim is not None and claim.worker == worker.name


def test_the_classic_failure_corrupts_only_the_unfenced_balance(scene: Scene) -> None:
    scene.do("play", {})
    until(scene, lambda: not scene.story.playing)
    assert scene.story.state()["step"] == len(STEPS)
    assert scene.story.state()["failed"] == ""
    unfenced, fenced = scene.resources
    assert [(one.worker, one.stale, one.refused) for one in unfenced.writes] == [
        ("B", False, False),
        ("A", True, False),
    ]
    assert [(one.worker, one.stale, one.refused) for one in fenced.writes] == [
        ("B", False, False),
        ("A", True, True),
    ]
    assert (unfenced.jobs, unfenced.balance, unfenced.corrupted) == (2, 1, True)
    assert (fenced.jobs, fenced.balance, fenced.corrupted) == (1, 1, False)
    numbers = [write["token"] for write in scene.state()["resources"][0]["writes"]]
    assert numbers == [1, 2]
    # A did check, and learned of the loss only after it had written.
    assert "lost" in scene.workers["A"].note


def test_the_story_is_the_same_each_time(scene: Scene) -> None:
    for _ in range(2):
        scene.do("play", {})
        until(scene, lambda: not scene.story.playing)
        assert [write.worker for write in scene.unfenced.writes] == ["B", "A"]
        assert scene.unfenced.corrupted
        assert not scene.fenced.corrupted


def test_step_by_step_nothing_gets_ahead_of_its_caption(scene: Scene) -> None:
    scene.do("play", {"step_by_step": True})
    seen = []
    for number in range(1, len(STEPS) + 1):
        until(scene, lambda number=number: scene.story.state()["step"] == number)
        a, b = scene.workers["A"], scene.workers["B"]
        seen.append((a.stage, a.faults.paused, b.stage, len(scene.unfenced.writes)))
        scene.do("next", {})
    until(scene, lambda: not scene.story.playing)
    working, writing, stopped = Stage.WORKING, Stage.WRITING, Stage.STOPPED
    assert seen[0] == (working, False, stopped, 0)
    assert seen[1] == (working, False, Stage.WAITING, 0)
    assert seen[2] == (writing, True, Stage.WAITING, 0)
    assert seen[3] == (writing, True, working, 0)
    assert (*seen[4][:2], seen[4][3]) == (writing, True, 1)
    assert [count for *_, count in seen[5:]] == [2, 2]


def test_a_worker_that_checks_does_not_write_after_a_pause_in_its_work(scene: Scene) -> None:
    """The client knows by its clock, which is enough unless the pause comes after the check."""
    scene.do("set", {"check": True, "work": 20})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    until(scene, lambda: a.stage is Stage.WORKING)
    scene.do("pause", {"worker": "A"})
    scene.do("set", {"work": 0.1})
    b.start(jobs=1)
    until(scene, lambda: not b.alive)
    scene.do("resume", {"worker": "A"})
    scene.do("set", {"work": 20})
    scene.do("stop", {"worker": "A"})
    assert [write.worker for write in scene.unfenced.writes] == ["B"]


def test_a_paused_worker_does_nothing_while_its_clock_runs(scene: Scene) -> None:
    a = scene.workers["A"]
    scene.do("set", {"work": 20})
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("pause", {"worker": "A"})
    until(scene, lambda: scene.record.holder() is None)
    state = a.state()
    # It believes in its lease, which has expired by its own clock.
    assert state["paused"]
    assert state["believes"] == {"token": 1, "left_ms": 0}
    assert scene.state()["holders"] == []
    scene.do("resume", {"worker": "A"})
    until(scene, lambda: a.state()["believes"] is None)


def test_a_crashed_worker_keeps_the_lock_until_its_ttl_is_over(scene: Scene) -> None:
    scene.do("set", {"work": 20})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("crash", {"worker": "A"})
    assert a.stage is Stage.CRASHED
    assert holds(scene, a)
    b.start()
    until(scene, lambda: holds(scene, b))
    (claim,) = [claim for claim in scene.record.claims if claim.worker == "A"]
    assert claim.how == "expired"
    scene.do("start", {"worker": "A"})
    until(scene, lambda: a.stage is Stage.WAITING)


def test_a_stopped_worker_releases_at_once(scene: Scene) -> None:
    scene.do("set", {"ttl": 30, "work": 20})
    a = scene.workers["A"]
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("stop", {"worker": "A"})
    assert scene.record.holder() is None
    assert a.stage is Stage.STOPPED
    assert not scene.unfenced.writes


def test_a_worker_that_is_cut_off_loses_its_lease_and_knows_it(scene: Scene) -> None:
    scene.do("set", {"work": 20})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("cut_off", {"worker": "A"})
    b.start()
    until(scene, lambda: holds(scene, b))
    until(scene, lambda: a.state()["believes"] is None)
    (claim,) = [claim for claim in scene.record.claims if claim.worker == "A"]
    assert claim.believed_until_ms is not None
    assert claim.ended_ms is not None
    # Its own deadline comes first: the margin ensures that.
    assert claim.believed_until_ms <= claim.ended_ms
    scene.do("reconnect", {"worker": "A"})
    scene.do("set", {"work": 0.1})
    scene.do("stop", {"worker": "B"})
    scene.do("stop", {"worker": "A"})


def test_a_slow_clock_makes_a_worker_that_is_cut_off_believe_too_long(scene: Scene) -> None:
    scene.do("set", {"work": 20})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("clock", {"worker": "A", "rate": 0.05})
    scene.do("cut_off", {"worker": "A"})
    b.start()
    until(scene, lambda: holds(scene, b))
    assert a.state()["believes"] is not None


def test_a_slow_clock_alone_does_no_harm(scene: Scene) -> None:
    """The store tells a client whose lease it has ended."""
    scene.do("set", {"work": 20})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    until(scene, lambda: holds(scene, a))
    scene.do("clock", {"worker": "A", "rate": 0.05})
    b.start()
    until(scene, lambda: a.state()["believes"] is None)


def test_a_fast_clock_ends_leases_early_and_wrongs_nobody(scene: Scene) -> None:
    a, b = scene.workers["A"], scene.workers["B"]
    a.start(jobs=3)
    b.start()
    scene.do("clock", {"worker": "B", "rate": 20})
    until(scene, lambda: not a.alive)
    assert not scene.fenced.corrupted


def test_pause_before_write_is_after_the_check(scene: Scene) -> None:
    scene.do("set", {"check": True})
    a, b = scene.workers["A"], scene.workers["B"]
    a.start()
    scene.do("pause_before_write", {"worker": "A"})
    until(scene, lambda: a.faults.paused)
    written = len(scene.fenced.writes)
    b.start(jobs=1)
    until(scene, lambda: not b.alive)
    scene.do("resume", {"worker": "A"})
    until(scene, lambda: len(scene.fenced.writes) > written + 1)
    assert scene.unfenced.corrupted
    assert not scene.fenced.corrupted


def test_reset_frees_the_lock_and_empties_the_balances(scene: Scene) -> None:
    scene.do("start_all", {})
    until(scene, lambda: len(scene.fenced.writes) > 2)
    scene.do("reset", {})
    assert scene.is_idle
    assert scene.record.holder() is None
    state = scene.state()
    assert [resource["jobs"] for resource in state["resources"]] == [0, 0]
    assert {worker["stage"] for worker in state["workers"]} == {"stopped"}


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("fly", {}),
        ("pause", {}),
        ("pause", {"worker": "Z"}),
        ("pause", {"worker": 1}),
        ("pause", {"worker": "A", "more": 1}),
        ("clock", {"worker": "A"}),
        ("clock", {"worker": "A", "rate": 0}),
        ("clock", {"worker": "A", "rate": float("nan")}),
        ("clock", {"worker": "A", "rate": True}),
        ("set", {"ttl": 0.01}),
        ("set", {"ttl": 1e9}),
        ("set", {"work": "long"}),
        ("set", {"check": 1}),
        ("set", {"other": 1}),
        ("play", {"step_by_step": "no"}),
        ("reset", {"now": True}),
    ],
)
def test_wrong_commands_are_refused(scene: Scene, command: str, values: dict[str, Any]) -> None:
    before = scene.settings
    with pytest.raises(CommandError):
        scene.do(command, values)
    assert scene.settings == before
    assert scene.is_idle


def test_a_closed_scene_leaves_no_thread_behind() -> None:
    made = Scene(3)
    made.do("start_all", {})
    until(made, lambda: len(made.fenced.writes) > 0)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("playground-")]
    assert len(ours) == 3
    made.close()
    assert not any(thread.is_alive() for thread in ours)
