"""A lock taken over from a suspended process, step by step.

Three processes share a lock and a ledger. One of them is suspended in the middle of its
work, for longer than its lease lasts. When it continues, it still has a write to make.

Exits with 0 only if everything happened as promised. Draws `demo-timeline.svg`.
"""

import contextlib
import heapq
import json
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lockfast

# Run as a script, Python searches for modules in this directory only.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.timeline import Lease, Mark, Span, Timeline, draw

NAMES = ("ada", "ben", "cleo")
SLOW, SLOW_TURN, TURNS = "ada", 2, 4
TTL = 2.0
PATIENCE = 20.0
"""The story takes five seconds. After this many, something is wrong."""
PICTURE = Path("demo-timeline.svg")


class WentWrong(Exception):
    """Something did not happen as promised."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise WentWrong(what)


class Event(NamedTuple):
    """What a process did, or what was done to it."""

    at: float
    who: str
    what: str
    values: dict[str, Any]

    @property
    def token(self) -> int:
        return int(self.values["token"])


class Crew:
    """The processes of the demo, and the events they have reported so far."""

    def __init__(self) -> None:
        self.started_ns = time.monotonic_ns()
        self.events: list[Event] = []
        self._incoming: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._story = Story()
        self._deadline = time.monotonic() + PATIENCE
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._listeners: list[threading.Thread] = []

    def start(self, directory: Path) -> None:
        worker = Path(__file__).with_name("demo_worker.py")
        for name in NAMES:
            slow_turn = SLOW_TURN if name == SLOW else 0
            words = [name, directory, TURNS, TTL, slow_turn]
            # One process group each: Ctrl-C reaches only us, and we end them. If we are
            # killed, their pipes break, and the kernel ends a suspended one.
            self.processes[name] = subprocess.Popen(
                [sys.executable, str(worker), *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,
            )
            listener = threading.Thread(target=self._listen, args=[name], daemon=True)
            listener.start()
            self._listeners.append(listener)

    def _listen(self, name: str) -> None:
        output = self.processes[name].stdout
        assert output is not None
        for line in output:
            values = json.loads(line)
            at = (values.pop("at_ns") - self.started_ns) / 1e9
            self._incoming.put(Event(at, name, values.pop("what"), values))
        self._incoming.put(Event(self.now(), name, "ended", {}))

    def now(self) -> float:
        """Seconds since the start; all processes of a machine share this clock."""
        return (time.monotonic_ns() - self.started_ns) / 1e9

    def begin(self) -> None:
        """Start counting time now."""
        self.started_ns = time.monotonic_ns()

    def say(self, words: str) -> None:
        """Add a line of the narrator."""
        self._note(Event(self.now(), "demo", "told", {"words": words}))

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._story.hear(event)

    def until_all(self, what: str) -> None:
        """Wait until every process has reported this event."""
        while {e.who for e in self.events if e.what == what} != set(NAMES):
            self.until(lambda event: event.what == what)

    def until(self, happened: Callable[[Event], bool]) -> Event:
        """Wait for the next event of this kind; earlier ones do not count."""
        while True:
            left = self._deadline - time.monotonic()
            try:
                event = self._incoming.get(timeout=max(0.0, min(left, Story.DELAY)))
            except queue.Empty:
                require(left > 0, f"the demo did not end within {PATIENCE:g} s")
                self._story.tell(before=self.now() - Story.DELAY)
                continue
            if event.what == "ended":
                done = any(e.what == "done" and e.who == event.who for e in self.events)
                require(done, f"{event.who} ended in the middle of its work")
            self._note(event)
            self._story.tell(before=self.now() - Story.DELAY)
            if happened(event):
                return event

    def answer(self, name: str) -> None:
        """Send a process the line that it waits for."""
        pipe = self.processes[name].stdin
        assert pipe is not None
        pipe.write("go\n")
        pipe.flush()

    def stop(self, name: str) -> None:
        """Suspend a process; return when the kernel reports that it is stopped."""
        pid = self.processes[name].pid
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        require(os.WIFSTOPPED(status), f"{name} ended instead of stopping")
        self._note(Event(self.now(), name, "stopped", {}))

    def resume(self, name: str) -> None:
        self._note(Event(self.now(), name, "continued", {}))
        os.kill(self.processes[name].pid, signal.SIGCONT)

    def finish(self) -> None:
        """Print the remaining events."""
        self._story.tell(before=float("inf"))

    def end(self) -> None:
        """Kill every process, whatever state it is in."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for listener in self._listeners:
            listener.join()
        for process in self.processes.values():
            with process:  # reaps it and closes its pipes
                pass


COLOUR_OF: dict[str, int] = dict(zip((*NAMES, "demo"), (34, 33, 32, 90), strict=True))


class Story:
    """Prints events in order of time, one line each.

    Every process reports through its own pipe, so events may arrive out of order. They
    are held back for a moment and sorted.
    """

    DELAY = 0.05

    def __init__(self) -> None:
        self._coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._waiting: list[tuple[float, int, str]] = []
        self._count = 0

    def hear(self, event: Event) -> None:
        words = self._words(event)
        if words:
            self._count += 1
            token = str(event.values.get("token", ""))
            line = f"{event.at:7.3f} s  {event.who:<4}  {token:<16}  {words}"
            if self._coloured:
                bold = "1;31" if event.what in ("lost", "refused") else COLOUR_OF[event.who]
                line = f"\x1b[{bold}m{line}\x1b[0m"
            heapq.heappush(self._waiting, (event.at, self._count, line))

    def tell(self, before: float) -> None:
        while self._waiting and self._waiting[0][0] < before:
            print(heapq.heappop(self._waiting)[2], flush=True)

    def _words(self, event: Event) -> str:
        values = event.values
        match event.what:
            case "holds" if values["slow"]:
                return f"has the lock, reads balance {values['balance']}, waits for an answer …"
            case "holds":
                return f"has the lock, reads balance {values['balance']}"
            case "wrote":
                return f"writes balance {values['balance']}: admitted by the guard"
            case "lost":
                return "LOST: its first check says so; it tries to write anyway"
            case "refused":
                return f"REFUSED by the guard: older than {values['floor']}, already admitted"
            case "done":
                return "has finished its work"
            case "told":
                return str(values["words"])
        return ""


def main() -> None:
    print((__doc__ or "").split("\n\n")[1], end="\n\n")
    with tempfile.TemporaryDirectory(prefix="lockfast-demo-") as name:
        directory = Path(name)
        make_ledger(directory)
        url = f"sqlite://{directory / 'locks.db'}"
        with lockfast.connect(url, connect_timeout=0.5) as client, started(directory) as crew:
            lease_end = tell_story(crew, client)
            crew.finish()
        check(crew.events, directory, lease_end)
        PICTURE.write_text(draw(picture(crew.events, lease_end)), encoding="utf-8")
    print(f"\nEverything happened as promised. The picture is in {PICTURE.resolve()}")


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Crew]:
    def leave(*_: object) -> NoReturn:
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)
    crew = Crew()
    try:
        crew.start(directory)
        yield crew
    finally:
        crew.end()


def make_ledger(directory: Path) -> None:
    with contextlib.closing(sqlite3.connect(directory / "ledger.db")) as ledger:
        ledger.executescript(
            "CREATE TABLE account (balance INTEGER);"
            "INSERT INTO account VALUES (0);"
            "CREATE TABLE entries (number INTEGER PRIMARY KEY, token INTEGER);"
        )


def tell_story(crew: Crew, client: lockfast.Client) -> float:
    """Direct the processes; return when the lease of the suspended one ended."""
    crew.until_all("ready")
    crew.begin()
    crew.say(f"three processes, one lock; a lease lasts {TTL:g} s unless it is renewed")
    for name in NAMES:
        crew.answer(name)
        crew.until(by(name, "asks"))

    crew.until(lambda event: event.what == "holds" and event.values["slow"])
    stop_outside_the_store(crew, client)
    # It can no longer renew: what is left of its lease now is all it has.
    [holder] = client.inspect("ledger").holders
    lease_end = crew.now() + holder.remaining
    crew.say(f"suspends {SLOW} (SIGSTOP); its lease ends in {holder.remaining:.2f} s")
    crew.answer(SLOW)  # stays in the pipe until the process continues

    heir = crew.until(holds)
    late_ms = max(0.0, heir.at - lease_end) * 1000
    crew.say(f"{heir.who} took over {late_ms:.0f} ms after the end of that lease")
    crew.until(lambda event: event.what == "wrote")
    crew.until(holds)
    crew.until(holds)
    crew.say(f"continues {SLOW} (SIGCONT)")
    crew.resume(SLOW)

    crew.until_all("done")
    return lease_end


def holds(event: Event) -> bool:
    return event.what == "holds"


def by(name: str, what: str) -> Callable[[Event], bool]:
    return lambda event: event.who == name and event.what == what


def by_time(event: Event) -> float:
    return event.at


def stop_outside_the_store(crew: Crew, client: lockfast.Client) -> None:
    """Suspend the slow process in its own work, not inside a step of the store.

    Suspended inside a step it would block the others until it continues; the store then
    raises an error that names it. A step takes microseconds, so this hardly ever happens.
    """
    for _ in range(10):
        crew.stop(SLOW)
        try:
            client.lock("probe").acquire(timeout=0.5).release()
            return
        except lockfast.StoreUnavailableError:
            crew.resume(SLOW)
    raise WentWrong(f"{SLOW} was inside the store ten times in a row")


def check(events: list[Event], directory: Path, lease_end: float) -> None:
    """Compare what happened with what is promised."""
    grants = sorted((e for e in events if holds(e)), key=by_time)
    lost = [e for e in events if e.what == "lost"]
    refused = [e for e in events if e.what == "refused"]
    wrote = [e for e in events if e.what == "wrote"]

    tokens = [event.token for event in grants]
    require(tokens == sorted(set(tokens)), "tokens rise with every grant")
    slow = next(event for event in grants if event.values["slow"])
    heir = grants[grants.index(slow) + 1]
    require(heir.who != SLOW, "another process takes over")
    require(heir.at > lease_end - 0.01, "the lease was held to its end")
    require(heir.at < lease_end + 0.3, "the lock was taken over within TTL + 0.3 s")

    require(
        [(e.who, e.token) for e in lost] == [(SLOW, slow.token)],
        "the suspended process learns of its loss",
    )
    require(lost[0].values["state"] == "lost", "the lease says so itself")
    require(
        [(e.who, e.token) for e in refused] == [(SLOW, slow.token)],
        "its write, and only that, is refused",
    )
    require(refused[0].values["floor"] >= heir.token, "because of a newer token")

    with contextlib.closing(sqlite3.connect(directory / "ledger.db")) as ledger:
        [(balance,)] = ledger.execute("SELECT balance FROM account").fetchall()
        entries = [
            token for (token,) in ledger.execute("SELECT token FROM entries ORDER BY number")
        ]
    require(len(wrote) == len(NAMES) * TURNS, "every turn of every process was done once")
    require(balance == len(wrote), f"no write was lost: balance {balance}, writes {len(wrote)}")
    require(entries == sorted(set(entries)), "tokens rise in the order of the writes")
    require(slow.token not in entries, "nothing of the stale write remains")


def picture(events: list[Event], lease_end: float) -> Timeline:
    """The events as a picture."""
    timeline = Timeline(
        "One lock, three processes, one of them suspended",
        f"Lock “ledger” on the embedded store, TTL {TTL:g} s. Every write passes a guard in the "
        "ledger's own database.",
        NAMES,
    )
    for name in NAMES:
        mine = sorted((e for e in events if e.who == name), key=by_time)
        since: dict[str, Event] = {}
        for event in mine:
            since[event.what] = event
            if event.what == "holds":
                timeline.waits.append(Span(name, since["asks"].at, event.at))
            elif event.what == "released":
                held = since["holds"]
                timeline.leases.append(Lease(name, held.token, held.at, event.at, event.at))
            elif event.what == "lost":
                held = since["holds"]
                timeline.leases.append(Lease(name, held.token, held.at, lease_end, event.at))
            elif event.what == "continued":
                timeline.stops.append(Span(name, since["stopped"].at, event.at))
            elif event.what == "wrote":
                timeline.writes.append(Mark(name, event.at))
            elif event.what == "refused":
                timeline.refusals.append(Mark(name, event.at))
    return timeline


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted; no process was left behind", file=sys.stderr)
        sys.exit(130)
    except WentWrong as wrong:
        sys.exit(f"\nNot as promised: {wrong}")
