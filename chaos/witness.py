"""The resource that the locks protect, in the process that judges.

Each lock has two registers. The *fenced* one admits a token only if it has seen no newer one: every
holder adds one to it, and no update may ever be lost. The *unfenced* one accepts every write: a
lost update there shows why fencing is needed.

In addition, every holder proves when it held: it reads the clock, then calls `check()` on its
lease, and only then reports that instant. So a process that is stopped anywhere in between reports
an instant at which it really held, and two overlapping proofs of one lock are two holders at once.
All processes share the clock of one machine.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from lockfast.errors import StaleTokenError
from lockfast.guards.memory import MemoryGuard
from lockfast.runtimes.platform import now_us
from lockfast.sim.history import Entry


class Proof(NamedTuple):
    """One lease as its holder proved it: from its first to its last successful `check()`."""

    since: int
    until: int
    token: int
    by: str


class Overlap(NamedTuple):
    """Two holders of one lock at the same time."""

    name: str
    one: Proof
    other: Proof

    def __str__(self) -> str:
        return (
            f"{self.other.by} (token {self.other.token}) held {self.name!r} at {self.other.since} "
            f"µs, and {self.one.by} (token {self.one.token}) until {self.one.until} µs"
        )


def overlaps(name: str, proofs: Sequence[Proof]) -> Iterator[Overlap]:
    """Yield every lease that began while an earlier one was proved to be held."""
    last: Proof | None = None
    for proof in sorted(proofs):
        if last is not None and proof.since < last.until and proof.token != last.token:
            yield Overlap(name, last, proof)
        if last is None or proof.until > last.until:
            last = proof


class Witness:
    """Serves the registers on a Unix socket, a thread per connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        """Reads and writes of the fenced registers, as a history."""
        self.refused = 0
        self.entered: dict[str, int] = {}
        """When each lock was last entered."""
        self.holders: dict[str, str] = {}
        """Who last entered each lock."""
        self.entrants: dict[str, int] = {}
        """When each worker last entered a lock."""
        self.longest_gap_us: dict[str, int] = defaultdict(int)
        self.grants = 0
        self._guard = MemoryGuard()
        self._fenced: dict[str, int] = defaultdict(int)
        self._unfenced: dict[str, int] = defaultdict(int)
        self._unfenced_writes: dict[str, int] = defaultdict(int)
        self._proofs: dict[str, dict[tuple[str, int], Proof]] = defaultdict(dict)
        self._mutex = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def overlaps(self) -> list[Overlap]:
        with self._mutex:
            return [
                found
                for name, proofs in self._proofs.items()
                for found in overlaps(name, list(proofs.values()))
            ]

    def unfenced_lost(self) -> int:
        """Return how many updates of the unfenced registers were overwritten."""
        with self._mutex:
            return sum(self._unfenced_writes[n] - v for n, v in self._unfenced.items())

    def note(self, **about: object) -> None:
        """Add an event that happens now to the history."""
        with self._mutex:
            self.entries.append({"at": now_us(), **about})

    # ── what holders ask ─────────────────────────────────────────────────────────────

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        name, token, by = question["name"], question["token"], question["by"]
        with self._mutex:
            match question["do"]:
                case "held":
                    return self._held(name, Proof(question["at"], question["at"], token, by))
                case "read":
                    return self._admit("read", name, token, by, self._fenced[name])
                case "write":
                    return self._admit("write", name, token, by, question["value"])
                case "read unfenced":
                    return {"value": self._unfenced[name]}
                case "write unfenced":
                    self._unfenced_writes[name] += 1
                    self._unfenced[name] = question["value"]
                    return {}
                case other:
                    raise ValueError(f"no such question: {other!r}")

    def _held(self, name: str, proof: Proof) -> dict[str, Any]:
        key = (proof.by, proof.token)
        former = self._proofs[name].get(key)
        if former is None:
            self.grants += 1
            now = now_us()
            if name in self.entered:
                gap = now - self.entered[name]
                self.longest_gap_us[name] = max(gap, self.longest_gap_us[name])
            self.entered[name] = now
            self.holders[name] = proof.by
            self.entrants[proof.by.partition(".")[0]] = now
            self._proofs[name][key] = proof
        else:
            self._proofs[name][key] = former._replace(until=max(former.until, proof.until))
        return {}

    def _admit(self, what: str, name: str, token: int, by: str, value: int) -> dict[str, Any]:
        try:
            self._guard.admit(name, token)
            admitted = True
        except StaleTokenError:
            admitted = False
        entry = {"at": now_us(), what: name, "token": token, "by": by}
        self.entries.append({**entry, "value": value, "admitted": admitted})
        if not admitted:
            self.refused += what == "write"
            return {"stale": True}
        if what == "write":
            self._fenced[name] = value
        return {"value": value}

    # ── its life ─────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, job: Any, *arguments: object) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=job, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.add(connection)
                self._start(self._talk, connection)

    def _talk(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rwb", buffering=0) as lines:
            for line in lines:
                # A killed worker may leave a partial line.
                if line.endswith(b"\n"):
                    lines.write(json.dumps(self.answer(json.loads(line))).encode() + b"\n")
        self._open.discard(connection)


class Register:
    """A holder's connection to the witness: the registers of every lock, and its proofs."""

    def __init__(self, path: str, by: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rb")
        self.by = by

    def ask(self, do: str, name: str, token: int, **about: object) -> dict[str, Any]:
        question = {"do": do, "name": name, "token": token, "by": self.by, **about}
        self._socket.sendall(json.dumps(question).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
