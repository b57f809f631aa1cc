"""Real signals at random times: nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.processes import roles
from tests.processes.crew import Child, Crew

NAME = "orders/42"
ROUNDS = 1000
SEED = 42


def interrupt(child: Child, patience_s: float) -> None:
    """Send Ctrl-C a moment after the child has reported that it is working."""
    if patience_s:
        time.sleep(patience_s)  # the random time itself, not a wait for something
    os.kill(child.pid, signal.SIGINT)


def test_a_thousand_times_ctrl_c(crew: Crew) -> None:
    """At any point of acquire and release: no row, thread or descriptor is left."""
    instants = random.Random(SEED)
    competitor = crew.start(roles.compete, NAME)
    competitor.hears("ready")
    child = crew.start(roles.be_interrupted, NAME, ROUNDS)
    for _ in range(ROUNDS):
        child.hears("round")
        interrupt(child, instants.random() * 0.004)
        while not child.is_talking(1.0):
            interrupt(child, 0)  # the last one was raised inside a finalizer

    child.hears("done")
    competitor.tell("enough")
    assert int(competitor.hears("entered")[0]) > 0
    assert competitor.finish() == 0
    child.tell("clean up")
    assert child.hears("clean") == [], f"seed {SEED}"
    assert child.finish() == 0


def test_release_in_a_signal_handler(crew: Crew) -> None:
    """The handler of SIGTERM releases the lock, whatever it interrupts."""
    instants = random.Random(SEED)
    waiting = crew.client(ttl=30.0)
    child = crew.start(roles.release_in_handler, 50)
    for _ in range(50):
        child.hears("held")
        time.sleep(instants.random() * 0.004)
        os.kill(child.pid, signal.SIGTERM)
        assert child.hears_anything() in ("released", "later")
        waiting.lock("kept").acquire(timeout=8.0).release()
        child.tell("go on")
    assert child.finish() == 0
