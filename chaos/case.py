"""One case: worker processes on a store, one kind of fault that strikes repeatedly, a verdict.

After the last strike everything is repaired, and the workers continue until every lock has been
entered again. Then they are asked to end, and their histories are judged together with what the
witness saw. A case fails if

  exclusion  two workers prove that they held one lock at the same time, or the history says so
  tokens     a token is granted twice or decreases
  register   an update of the fenced register is lost, or a stale write is admitted
  order      a claim is overtaken by one that was sent after it had been queued
  liveness   a lock is not entered within three TTLs of the repair (plus the allowance for a busy
             machine), or locks left behind by workers are not free by then
  hang       a worker does not end when asked, or a call takes much longer than its timeout
  typed      a call raises anything but a LockfastError

except for what the store does not promise after such a fault (`Target.unpromised`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import lockfast
from chaos.faults import FAULTS, MIX, mixed
from chaos.targets import NAMES, Target
from chaos.witness import Witness
from chaos.worker import ACQUIRE_S, CLOSING_S, Orders
from lockfast.runtimes.platform import now_us
from lockfast.sim.checker import Problem, check_history
from lockfast.sim.history import Entry, read_history

ROOT: Final = Path(__file__).parents[1]
ALLOWANCE_S: Final = 10.0
"""Added to every bound, because on a busy machine a process may have to wait for the CPU."""
START_S: Final = 60.0
LOOK_EVERY_S: Final = 0.02
TICK_S: Final = 0.5
HOLDERS: Final = 0.7
"""How often a fault of a worker hits one that holds a lock."""


@dataclass(frozen=True)
class Plan:
    """The duration, the seed and the pace of a case."""

    seconds: float = 10.0
    strikes: int = 0
    """The least number of strikes, however long they take."""
    seed: int = 1
    gap_s: float | None = None
    """The time between two strikes; None: a fraction of the TTL."""
    hold_ms: float = 8.0
    pause_ms: float = 8.0


@dataclass
class Result:
    """The result of a case: a row of the table."""

    store: str
    fault: str
    strikes: int = 0
    grants: int = 0
    overlaps: int = 0
    refused: int = 0
    """Stale writes that the fenced register refused."""
    unfenced_lost: int = 0
    """Updates that the unfenced register lost."""
    outage_ms: int = 0
    """The longest time in which no worker entered some lock."""
    recovery_ms: int = 0
    """From the repair until every lock had been entered again."""
    promised: bool = True
    """The store promises exclusion and order after this fault."""
    outcomes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    namespace: str = ""


class Worker:
    """One worker process, and the files it writes."""

    def __init__(self, number: int, life: int, case: Case) -> None:
        self.label = f"w{number}"
        self.started_us = now_us()
        self._killed_us = 0
        self.history = case.directory / f"{self.label}-{life}.jsonl"
        self._errors = case.directory / f"{self.label}-{life}.log"
        target = case.target
        orders = Orders(
            url=target.url(case.namespace),
            witness=str(case.witness.path),
            by=self.label,
            face=("threads", "asyncio")[(number + life) % 2],
            ttl=target.ttl,
            seed=f"{case.plan.seed} {self.label} {life}",
            names=NAMES,
            shares=target.shares,
            lanes=target.lanes,
            hold_ms=case.plan.hold_ms,
            pause_ms=case.plan.pause_ms,
        )
        environment = {**os.environ, **target.worker_environment()}
        environment["LOCKFAST_HISTORY"] = str(self.history)
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "chaos.worker", json.dumps(asdict(orders))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=environment,
            )

    def kill(self) -> None:
        # Read the clock before the signal: its lock may be granted to another before we see it
        # dead.
        self._killed_us = now_us()
        self.process.kill()
        self._reap()

    def ask_to_end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def report(self, within_s: float) -> dict[str, Any]:
        """Return what the worker reports when it ends. Raises HangError if it does not end."""
        assert self.process.stdout is not None
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
            self.kill()
            raise HangError(f"{self.label} did not end:\n{self.said()}") from None
        said = self.process.stdout.read()
        self._reap()
        if self.process.returncode != 0:
            raise HangError(f"{self.label} ended with {self.process.returncode}:\n{self.said()}")
        found: dict[str, Any] = json.loads(said)
        return found

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]

    def entries(self) -> Iterator[Entry]:
        """Yield its history under its label; a killed worker's leases end when it was killed."""
        if not self.history.exists():
            return
        held: set[int] = set()
        for entry in read_history(self.history):
            if "by" in entry:
                entry["by"] = self.label
            if entry.get("got") == "granted":
                held.add(entry["op"])
            elif entry.get("got") == "over":
                held.discard(entry["op"])
            yield entry
        if self._killed_us:
            for op in held:
                yield {"at": self._killed_us, "op": op, "got": "over", "why": "killed"}

    def _reap(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class HangError(Exception):
    """A worker did not end, or ended with an error."""


class Case:
    """Runs one fault on one store; the `Scene` of `faults.py`."""

    def __init__(self, target: Target, fault: str, plan: Plan, directory: Path) -> None:
        self.target = target
        self.plan = plan
        self.directory = directory
        self.rng = random.Random(f"{target.name} {fault} {plan.seed}")
        self.namespace = f"chaos-{fault}-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.witness = Witness(directory / "witness.sock")
        self.result = Result(target.name, fault, namespace=self.namespace)
        self.result.promised = "exclusion" not in target.unpromised(fault)
        self.workers: list[Worker] = []
        self._former: list[Worker] = []
        self._faults = mixed(target) if fault == MIX else [fault]

    def run(self) -> Result:
        """Run the case and return its result; one that cannot be completed counts as broken."""
        try:
            self._run()
        except Exception as error:
            self.result.problems.append(f"not run to its end: {type(error).__name__}: {error}")
        return self.result

    def _run(self) -> None:
        self.target.prepare(self.namespace)
        with self.witness:
            self.workers = [Worker(i, 0, self) for i in range(self.target.workers)]
            try:
                self._await_entries(0, 1, START_S, "no worker could begin")
                self._strike()
                self._recover()
                self._end()
            finally:
                for worker in self.workers:
                    if worker.process.poll() is None:
                        worker.kill()
            self._look_at_rest()
            self._judge()

    def tick(self) -> None:
        """Called repeatedly between strikes, while nothing is broken."""

    # ── the course of a case ─────────────────────────────────────────────────────────

    def _strike(self) -> None:
        until = time.monotonic() + self.plan.seconds
        while time.monotonic() < until or self.result.strikes < self.plan.strikes:
            strike = FAULTS[self.rng.choice(self._faults)].strike
            if strike is None:
                self._rest(max(0.1, until - time.monotonic()))
                break
            self.target.revive()
            strike(self)
            self.result.strikes += 1
            gap_s = self.plan.gap_s or 0.4 * self.target.ttl
            self._rest(self.rng.uniform(0.1, 1.0) * gap_s)

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.tick()
            time.sleep(min(left, TICK_S))

    def _recover(self) -> None:
        self.target.revive()
        for proxy in self.target.proxies:
            proxy.heal()
        for shim in self.target.shims:
            shim.move_clock(0)
        self.witness.note(heal=True)
        healed = time.monotonic()
        bound_s = 3 * self.target.ttl + ALLOWANCE_S
        self._await_entries(now_us(), 2, bound_s, "liveness: not entered after the repair")
        self.result.recovery_ms = round((time.monotonic() - healed) * 1000)
        self.wait(0.3)

    def _await_entries(self, since_us: int, rounds: int, within_s: float, problem: str) -> None:
        """Wait until every lock has been entered `rounds` times since an instant."""
        give_up = time.monotonic() + within_s
        for _ in range(rounds):
            missing = set(NAMES)
            while missing:
                missing -= {n for n, at in self.witness.entered.items() if at > since_us}
                if time.monotonic() > give_up:
                    said = "\n".join(worker.said() for worker in self.workers)
                    names = ", ".join(sorted(missing))
                    self.result.problems.append(
                        f"{problem} within {within_s:.0f} s: {names}\n{said}"
                    )
                    return
                self.wait(LOOK_EVERY_S)
            since_us = now_us()

    def _end(self) -> None:
        outcomes: dict[str, int] = {}
        for worker in self.workers:
            worker.ask_to_end()
        for worker in self.workers:
            try:
                seen = worker.report(CLOSING_S + ALLOWANCE_S)
            except HangError as error:
                self.result.problems.append(f"hang: {error}")
                continue
            for outcome, count in seen["outcomes"].items():
                outcomes[outcome] = outcomes.get(outcome, 0) + count
            self.result.problems += [f"typed: {text}" for text in seen["unexpected"][:3]]
            stopped_s = 2 * self.target.ttl
            bound_s = ACQUIRE_S + stopped_s + ALLOWANCE_S
            if seen["slowest_s"] > bound_s:
                self.result.problems.append(
                    f"hang: a call with a timeout of {ACQUIRE_S} s took {seen['slowest_s']:.1f} s"
                )
        self.result.outcomes = outcomes

    def _look_at_rest(self) -> None:
        """Check that every lock can be acquired again, and that nothing is left behind."""
        if not self.target.outlives_workers:
            return
        bound_s = 3 * self.target.ttl + ALLOWANCE_S
        give_up = time.monotonic() + bound_s
        with lockfast.connect(
            self.target.direct_url(self.namespace), ttl=self.target.ttl
        ) as client:
            for name in NAMES:
                try:
                    client.lock(name).acquire(timeout=bound_s).release()
                except lockfast.LockfastError as error:
                    self.result.problems.append(f"liveness: after the end: {error}")
            while self.target.shares and (left := self._left_behind(client)):
                if time.monotonic() > give_up:
                    self.result.problems.append(f"liveness: left behind: {left}")
                    break
                self.wait(LOOK_EVERY_S)

    @staticmethod
    def _left_behind(client: lockfast.Client) -> object:
        try:
            return client.list()
        except lockfast.StoreUnavailableError as error:
            return error

    # ── the verdict ──────────────────────────────────────────────────────────────────

    def _judge(self) -> None:
        result, witness = self.result, self.witness
        entries = list(witness.entries)
        for worker in [*self._former, *self.workers]:
            entries += worker.entries()
        entries.sort(key=itemgetter("at"))
        unpromised = self.target.unpromised(result.fault)
        alive_us = round((3 * self.target.ttl + ALLOWANCE_S) * 1_000_000)
        problems: list[Problem] = [
            problem
            for problem in check_history(entries, alive_us=alive_us, per_name=self.target.per_name)
            if problem.check not in unpromised
        ]
        overlaps = witness.overlaps()
        result.problems += map(str, problems)
        if "exclusion" not in unpromised:
            result.problems += [f"exclusion: {overlap}" for overlap in overlaps]
        result.overlaps = len(overlaps)
        result.grants = witness.grants
        result.refused = witness.refused
        result.unfenced_lost = witness.unfenced_lost()
        result.outage_ms = max(witness.longest_gap_us.values(), default=0) // 1000
        result.entries = entries

    # ── what faults do here ──────────────────────────────────────────────────────────

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def note(self, fault: str, on: str) -> None:
        self.witness.note(fault=fault, on=on)

    def resumed(self, on: str) -> None:
        self.witness.note(resumed=on)

    def kill_worker(self) -> None:
        # If the machine is too busy to start workers as fast as they are killed, wait for them.
        give_up = time.monotonic() + START_S
        while sum(map(self._is_up, self.workers)) < min(2, len(self.workers)):
            if time.monotonic() > give_up:
                return
            self.wait(LOOK_EVERY_S)
        i = self._victim()
        worker = self.workers[i]
        self.note("kill -9", worker.label)
        worker.kill()
        self._former.append(worker)
        life = sum(former.label == worker.label for former in self._former)
        self.workers[i] = Worker(int(worker.label[1:]), life, self)

    def stop_worker(self, seconds: float) -> None:
        worker = self.workers[self._victim()]
        self.note("pause", worker.label)
        worker.process.send_signal(signal.SIGSTOP)
        try:
            self.wait(seconds)
        finally:
            worker.process.send_signal(signal.SIGCONT)
        self.resumed(worker.label)

    def _is_up(self, worker: Worker) -> bool:
        return self.witness.entrants.get(worker.label, 0) > worker.started_us

    def _victim(self) -> int:
        """Choose a worker, mostly one that holds a lock or held it last."""
        mortal = self.mortal()
        holding = {by.partition(".")[0] for by in self.witness.holders.values()}
        holders = [i for i in mortal if self.workers[i].label in holding]
        return self.rng.choice(holders if holders and self.rng.random() < HOLDERS else mortal)

    def mortal(self) -> Sequence[int]:
        """Return the workers that may be killed or stopped."""
        return range(len(self.workers))
