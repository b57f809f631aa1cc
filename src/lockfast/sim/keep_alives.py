"""The keep-alives of a recorded history, and the stalls between them.

A client renews its session every third of the TTL. A *stall* begins when a renewal was due and
ends with the reply to the next successful keep-alive; it is what a lease must survive. Its causes
differ: the process did not run, the store could not be reached, or the reply was slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from lockfast.flow.session import RENEWALS_PER_TTL
from lockfast.flow.session_life import margin_ms
from lockfast.sim.entries import HistoryError
from lockfast.sim.history import Entry

FAR: Final = 1 << 62
LATE_US: Final = 10_000
"""A keep-alive that is less late than this is on time: schedulers do no better."""
GIVING_UP_SHARE: Final = 10
"""A client that runs gives up within a tenth of the TTL after the store's deadline."""


class Cause(StrEnum):
    """Why a keep-alive was late."""

    PAUSE = "pause"
    """The process did not run: it was stopped, swapped out or starved of CPU."""
    FAILURES = "failures"
    """Earlier attempts failed: the store was unreachable or refused them."""
    SLOW_REPLY = "slow reply"


class KeepAlive(NamedTuple):
    """A keep-alive that the store confirmed, or the opening of the session."""

    sent_us: int
    replied_us: int
    ttl_us: int


class Stall(NamedTuple):
    """The time from when a renewal was due until the session was renewed, or ended."""

    session: str
    due_us: int
    length_us: int
    cause: Cause
    at_least: bool = False
    """The client gave up before the stall was over, so it was longer than this."""


@dataclass
class Lease:
    """When a lease was held."""

    granted_us: int
    over_us: int = FAR


@dataclass
class SessionRecord:
    """What a history says about one session."""

    id: str
    keep_alives: list[KeepAlive] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """When keep-alives that failed were sent."""
    leases: list[Lease] = field(default_factory=list)
    lost_us: int | None = None
    gave_up: bool = False
    """The client's deadline passed. Otherwise the store said that the session had ended."""

    def gap_max_us(self) -> int:
        """Return the longest time between two successful keep-alives."""
        sent = [each.sent_us for each in self.keep_alives]
        ends = [*sent[1:], self.lost_us] if self.lost_us is not None else sent[1:]
        return max((end - start for start, end in zip(sent, ends, strict=False)), default=0)

    def ends_held(self) -> bool:
        """Return True if the record stops while a lease is held: probably a killed process."""
        return any(lease.over_us == FAR for lease in self.leases)

    def stalls(self) -> list[Stall]:
        """Return the keep-alives that were late, and the loss of the session if it was lost."""
        found = []
        following = self.keep_alives[1:]
        for last, after in zip(self.keep_alives, following, strict=False):
            found.append(self._stall(last, after.sent_us, after.replied_us))
        if self.lost_us is not None and self.keep_alives:
            last = self.keep_alives[-1]
            stall = self._stall(last, self.lost_us, self.lost_us)
            found.append(stall._replace(at_least=self._is_open_ended(last)))
        return [stall for stall in found if stall.length_us >= LATE_US]

    def _is_open_ended(self, last: KeepAlive) -> bool:
        """A client that runs gives up at its deadline; one that was paused does so later."""
        latest_us = last.sent_us + last.ttl_us + last.ttl_us // GIVING_UP_SHARE
        return self.gave_up and self.lost_us is not None and self.lost_us <= latest_us

    def _stall(self, last: KeepAlive, sent_us: int, replied_us: int) -> Stall:
        due_us = last.sent_us + last.ttl_us // RENEWALS_PER_TTL
        if any(last.sent_us < failed_us < sent_us for failed_us in self.failures):
            cause = Cause.FAILURES
        elif sent_us - due_us >= replied_us - sent_us:
            cause = Cause.PAUSE
        else:
            cause = Cause.SLOW_REPLY
        return Stall(self.id, due_us, replied_us - due_us, cause)

    def held_at(self, at_us: int) -> int:
        """Return how many leases were held at an instant."""
        return sum(lease.granted_us <= at_us < lease.over_us for lease in self.leases)


def read_sessions(entries: Iterable[Entry]) -> list[SessionRecord]:
    """Return the sessions of a history. Raises HistoryError if it was recorded without times."""
    sessions: dict[str, SessionRecord] = {}
    leases: dict[int, Lease] = {}
    without_times = Counter[str]()

    def session(name: str) -> SessionRecord:
        return sessions.setdefault(name, SessionRecord(name))

    for entry in entries:
        at_us = entry["at"]
        if "lives" in entry:
            sent_us = entry.get("sent")
            if sent_us is None or not sent_us < entry["until"] or at_us < sent_us:
                without_times[entry["lives"]] += 1
                continue
            ttl_us = entry["until"] - sent_us
            session(entry["lives"]).keep_alives.append(KeepAlive(sent_us, at_us, ttl_us))
        elif "fails" in entry:
            session(entry["fails"]).failures.append(entry["sent"])
        elif entry.get("got") == "granted" and "session" in entry:
            lease = Lease(at_us)
            session(entry["session"]).leases.append(lease)
            leases[entry["op"]] = lease
        elif entry.get("got") == "over" and entry["op"] in leases:
            leases.pop(entry["op"]).over_us = at_us
        elif entry.get("why") in ("expired", "lost") and "ends" in entry:
            record = session(entry["ends"])
            record.lost_us, record.gave_up = at_us, entry["why"] == "expired"
    if without_times:
        raise HistoryError(
            f"{without_times.total()} keep-alives have no valid time of sending; record the "
            "history again with this version"
        )
    for record in sessions.values():
        record.keep_alives.sort()
    return [record for record in sessions.values() if record.keep_alives]


def slack_us(ttl_ms: int) -> int:
    """Return how long a renewal may be overdue before a lease with this TTL is lost."""
    return (ttl_ms - margin_ms(ttl_ms)) * 1000 - ttl_ms * 1000 // RENEWALS_PER_TTL
