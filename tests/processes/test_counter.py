"""Eight processes, one lock: no update is lost, and all are served in turn."""

from __future__ import annotations

from lockfast import WatchEvent
from tests.logs import begin_log
from tests.measuring import Measured
from tests.processes import roles
from tests.processes.crew import Crew, now_ms

NAME = "counter"
PROCESSES = 8
TIMES = 1000


class Line:
    """The order of a lock's queue, from the store's log."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, int]] = []
        self.granted = 0
        self.passed: list[WatchEvent] = []
        self.last_token = 0

    def follow(self, event: WatchEvent) -> None:
        claim = (event.session, event.n)
        if event.what == "waiting":
            self.waiting.append(claim)
        elif event.what == "granted":
            # A claim that did not wait may be granted at once only if no other waits.
            if self.waiting[:1] not in ([claim], []):
                self.passed.append(event)
            if claim in self.waiting:
                self.waiting.remove(claim)
            assert event.token is not None
            assert event.token > self.last_token
            self.last_token = event.token
            self.granted += 1


def test_eight_processes_count_to_eight_thousand(crew: Crew, measured: Measured) -> None:
    """The counter is exact, tokens rise in order of entry, and no claim is overtaken."""
    (crew.directory / "counter").write_text("0")
    client = crew.client()
    log = client.watch(NAME, after=begin_log(client))
    events = iter(log)
    children = [
        crew.start(roles.count_up, NAME, TIMES, str(crew.directory)) for _ in range(PROCESSES)
    ]
    for child in children:
        child.hears("ready")
    begun_ms = now_ms()
    for child in children:
        child.tell("go")
    line = Line()
    while line.granted < PROCESSES * TIMES:
        line.follow(next(events))
    log.close()
    for child in children:
        child.hears("done")
        assert child.finish() == 0
    took_ms = now_ms() - begun_ms

    assert (crew.directory / "counter").read_text() == str(PROCESSES * TIMES)
    tokens = [int(text) for text in (crew.directory / "entries").read_text().split()]
    assert len(tokens) == PROCESSES * TIMES
    assert tokens == sorted(set(tokens)), "tokens do not rise in the order of entry"
    assert line.passed == [], "a later claim was served first"
    measured(f"per hand-over among {PROCESSES} processes", took_ms / (PROCESSES * TIMES))
