"""What a killed process held is released: a term, a place in a party, permits, a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.processes.crew import Child, Crew, now_ms, until
from tests.processes_primitives import roles

AT_LEAST_S = 0.25
WINDOWS = 20


class Granted(NamedTuple):
    """The bounds of a grant's time: an inspection takes time and rounds."""

    earliest_ms: float
    latest_ms: float


def test_an_observer_sees_exactly_one_change_when_the_leader_is_killed(crew: Crew) -> None:
    watcher = crew.client()
    leader = crew.start(roles.campaign, "chair", "first")
    (epoch,) = leader.hears("standing") or leader.hears("leads")
    seen = watcher.election("chair").observe()
    present = next(seen)
    assert present is not None
    assert (present.value, present.epoch) == ("first", int(epoch))
    heir = crew.start(roles.campaign, "chair", "second")
    heir.hears("standing")
    until(lambda: watcher.inspect("chair", kind="election").waiting_count == 1, "it stands")

    leader.kill()

    (new_epoch,) = heir.hears("leads")
    change = next(seen)
    assert change is not None
    assert (change.value, change.epoch) == ("second", int(new_epoch))
    assert change.epoch > present.epoch
    heir.tell("resign")
    assert next(seen) is None, "and nothing came between"


def test_a_crash_is_a_leave(crew: Crew) -> None:
    """No claim waits for a place in a party, so its process is not watched: its TTL ends it."""
    watcher = crew.client(ttl=1.0)
    changes = watcher.party("fleet").watch()
    assert next(changes) == ()
    two = crew.start(roles.join, "fleet", "two", ttl=30.0)
    assert [member.value for member in next(changes)] == ["two"]
    one = crew.start(roles.join, "fleet", "one", ttl=2.0)
    assert [member.value for member in next(changes)] == ["two", "one"]
    one.kill()
    assert [member.value for member in next(changes)] == ["two"]
    two.tell("leave")
    assert next(changes) == ()


def test_of_several_holders_only_the_dead_make_way(crew: Crew) -> None:
    """A claim that does not wait gets what the dead held; live holders keep their permits."""
    dead, alive = (crew.start(roles.hold_permits, "api", 2, 1) for _ in range(2))
    for holder in (dead, alive):
        holder.hears("held")
    api = crew.client().semaphore("api", 2)
    assert api.try_acquire() is None
    dead.kill()
    permit = api.try_acquire()
    assert permit is not None
    assert api.try_acquire() is None
    permit.release()


def test_a_crash_gives_permits_back(crew: Crew) -> None:
    holder = crew.start(roles.hold_permits, "api", 10, 8)
    holder.hears("held")
    waiter = crew.start(roles.hold_permits, "api", 10, 5)
    look = crew.client()
    until(lambda: look.inspect("api", kind="semaphore").waiting_count == 1, "it waits")
    holder.kill()
    waiter.hears("held")
    waiter.tell("end")


def test_once_over_twenty_windows_with_kills(crew: Crew, tmp_path: Path) -> None:
    """Four processes, and the running one is killed now and then: twenty runs in twenty windows,
    never two in one window by the clock that measures windows."""
    book = tmp_path / "runs"
    book.touch()
    watcher = crew.client()

    def start() -> None:
        children.append(crew.start(roles.run_once, "nightly", AT_LEAST_S, str(book)))

    def granted() -> Granted:
        earliest_ms = now_ms()
        (holder,) = watcher.inspect("nightly", kind="once").holders
        held_ms = holder.seconds * 1000
        return Granted(earliest_ms - held_ms - 1, now_ms() - held_ms + 1)

    children: list[Child] = []
    for _ in range(4):
        start()
    grants = []
    for window in range(WINDOWS):
        until(lambda: any(child.is_talking(0) for child in children), f"run {window}")
        (runner,) = [child for child in children if child.is_talking(0)]
        runner.hears("running")
        assert book.read_text().count("ran") == window + 1
        grants.append(granted())
        if window % 4 == 1:
            runner.kill()  # in the middle of its run
            children.remove(runner)
            start()
        else:
            runner.tell("go on")
    assert book.read_text().count("ran") == WINDOWS
    spans = [later.latest_ms - earlier.earliest_ms for earlier, later in pairwise(grants)]
    assert min(spans) >= AT_LEAST_S * 1000
