"""The classic failure: a holder pauses between its last check and its write.

    A acquires ─ works ─ checks: held ─┐ paused …………………………………… resumes ─ writes with token 1
    B              waits ………………………………………… lease of A expires ─ acquires ─ writes with token 2

Every step waits for the event that it describes, so the story is the same each time, however slow
the machine. Workers are held back between the steps, so that nothing gets ahead of its caption.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lockfast.playground.worker import Stage, Worker

if TYPE_CHECKING:
    from lockfast.playground.scene import Scene

CAPTION_S: Final = 4.0
"""The shortest time for which a caption is shown."""
STEP_S: Final = 90.0
"""The longest time that a step may take: an expiry takes up to the longest TTL."""


class Step(NamedTuple):
    title: str
    caption: str


STEPS: Final = (
    Step("A holds the lock", "A acquires the lock with token 1, reads both balances and works."),
    Step("B waits", "B asks for the same lock. It is queued behind A."),
    Step(
        "A is paused",
        "A checks its lease: still held. Before it can write, it is paused: a garbage "
        "collection, a suspended VM, SIGSTOP. It renews nothing and notices nothing.",
    ),
    Step(
        "The lease expires",
        "A has not renewed its lease for a whole TTL, so the store ends it. B acquires the lock "
        "with token 2. A still believes that it holds the lock.",
    ),
    Step("B writes", "B reads both balances, adds 1, writes them with token 2, and releases."),
    Step(
        "A resumes and writes",
        "A continues exactly where it was, after its check. It writes the balances that it "
        "computed before, with token 1.",
    ),
    Step(
        "One balance is wrong",
        "The unfenced balance accepted the stale write: the work of B is gone, and nobody got "
        "an error. The fenced balance had seen token 2 and refused token 1. No check in A could "
        "have prevented this; only the resource can.",
    ),
)


class _Ended(Exception):
    """The story was stopped, or a step did not happen."""


class Story:
    """Plays the failure in a scene, in its own thread."""

    def __init__(self, scene: Scene, caption_s: float = CAPTION_S) -> None:
        self._scene = scene
        self.caption_s = caption_s
        self._thread: threading.Thread | None = None
        self._step = 0
        self._steps_allowed: int | None = None
        self._stopping = False
        self._failed = ""

    def play(self, step_by_step: bool) -> None:
        """Clear the scene and start the story."""
        self._step, self._stopping, self._failed = 0, False, ""
        self._steps_allowed = 1 if step_by_step else None
        self._scene.clear()
        self._thread = threading.Thread(target=self._run, name="playground-story", daemon=True)
        self._thread.start()

    def next(self) -> None:
        """Continue with the next step, in step-by-step mode."""
        if self._steps_allowed is not None:
            self._steps_allowed = self._step + 1
            self._scene.changed()

    def stop(self) -> None:
        """Stop the story at its current step and let the workers continue."""
        self._stopping = True
        self._scene.changed()
        thread = self._thread
        if thread is not None:
            thread.join(10)
            self._thread = None
        for worker in self._scene.workers.values():
            worker.let_go()

    @property
    def playing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def state(self) -> dict[str, Any]:
        return {
            "playing": self.playing,
            "step": self._step,
            "step_by_step": self._steps_allowed is not None,
            "failed": self._failed,
            "steps": [step._asdict() for step in STEPS],
        }

    def _run(self) -> None:
        try:
            for _ in self._happen():
                self._step += 1
                self._scene.changed()
                self._show_caption()
        except _Ended as ended:
            self._failed = str(ended)
        self._scene.changed()

    def _show_caption(self) -> None:
        step = self._step

        def may_go_on() -> bool:
            allowed = self._steps_allowed
            return self._stopping or (allowed is not None and allowed > step)

        if step < len(STEPS):
            waits_s = self.caption_s if self._steps_allowed is None else None
            self._scene.wait_for(may_go_on, waits_s)
        if self._stopping:
            raise _Ended

    def _happen(self) -> Iterator[None]:
        """Play the story; yield after each step."""
        scene = self._scene
        first, second = list(scene.workers.values())[:2]
        first.start(jobs=1, hold_back=True, check=True)
        self._until(lambda: first.stage is Stage.WORKING)
        yield
        second.start(jobs=1, hold_back=True, check=True)
        self._until(lambda: self._is_queued(second))
        yield
        first.pause_before_write = True
        first.let_go()
        self._until(lambda: first.faults.paused or not first.alive)
        if not first.faults.paused:
            raise _Ended("A lost its lease before it was paused; choose a longer TTL and try again")
        yield
        self._until(lambda: second.stage is Stage.WORKING)
        yield
        second.let_go()
        self._until(lambda: self._has_written(second))
        yield
        first.resume()
        self._until(lambda: self._has_written(first))
        yield
        self._until(lambda: not first.alive and not second.alive)
        yield

    def _is_queued(self, worker: Worker) -> bool:
        self._scene.record.update()
        return any(
            claim.worker == worker.name and claim.granted_ms is None and claim.ended_ms is None
            for claim in self._scene.record.claims
        )

    def _has_written(self, worker: Worker) -> bool:
        return all(
            any(write.worker == worker.name for write in resource.writes)
            for resource in self._scene.resources
        )

    def _until(self, happened: Callable[[], bool]) -> None:
        self._scene.wait_for(lambda: self._stopping or happened(), STEP_S)
        if self._stopping:
            raise _Ended
        if not happened():
            raise _Ended("this step did not happen; reset the scene and try again")
