"""The port for `lockfast doctor` and `lockfast reset`: checks and repairs of a store.

The module that opens a store (the one `registry` names for its scheme) may also define

    def open_maintenance(url: StoreUrl) -> Maintenance

which must not connect yet. A store without it still opens and works; `doctor` then reports that
it has no checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from time import monotonic
from typing import Final, Literal, NamedTuple

from lockfast.core.commands import Reply, Sessions, SessionsReply
from lockfast.errors import StoreMisconfiguredError, UnsupportedError

Verdict = Literal["good", "note", "bad"]

PAGE: Final = 1000
ROUNDS: Final = 10


class Diagnosis(NamedTuple):
    """The result of one check, or of one step of a repair."""

    what: str
    found: str
    verdict: Verdict = "good"
    """`note`: safe, but the operator should know. `bad`: locks stored here would break promises."""
    advice: str = ""


class Maintenance:
    """Checks and repairs of one namespace of one store.

    A store overrides what it supports; the rest raises UnsupportedError. Each method opens and
    closes its own connections, and raises StoreUnavailableError if it cannot connect.
    """

    ttl_ms = 30_000
    """The TTL of the clients for which the store is checked; some stores do not support every TTL.
    """

    def __init__(self, label: str, advice: str = "") -> None:
        """`advice`: what to do instead of something that is not supported."""
        self.label = label
        self._advice = advice

    def examine(self) -> Iterator[Diagnosis]:
        """Check the store without changing anything."""
        raise self._unsupported("doctor")

    def repair(self) -> Iterator[Diagnosis]:
        """Make a damaged namespace usable again; yield what was changed.

        A change is a `note`, damage that remains is `bad`. Intact claims stay. Tokens granted
        afterwards are greater than all granted before.
        """
        raise self._unsupported("doctor --repair")

    def reset(self) -> Iterator[Diagnosis]:
        """End every session and delete every claim of the namespace; yield what was deleted.

        Tokens granted afterwards are greater than all granted before.
        """
        raise self._unsupported("reset")

    def dump(self) -> Iterator[str]:
        """Yield everything stored in the namespace as readable lines of text.

        Tabs separate the fields of a line. Secrets that authenticate wakes are omitted.
        """
        raise self._unsupported("doctor --dump")

    def raise_epoch(self) -> Iterator[Diagnosis]:
        """Raise tokens above all granted before a restore from a backup."""
        raise self._unsupported("doctor --raise-epoch")

    def refuse_reset_if_unsupported(self) -> None:
        """Raise UnsupportedError before the user is asked to confirm a reset."""
        if type(self).reset is Maintenance.reset:
            raise self._unsupported("reset")

    def _unsupported(self, command: str) -> UnsupportedError:
        return UnsupportedError(
            self.label,
            f"`lockfast {command}` is not available for this kind of store",
            self._advice,
        )


def round_trip(ask: Callable[[], object]) -> Diagnosis:
    """Measure how long the store takes to answer."""
    took_ms = []
    for _ in range(ROUNDS):
        sent_s = monotonic()
        ask()
        took_ms.append((monotonic() - sent_s) * 1000)
    found = f"{median(took_ms):.2f} ms (slowest of {ROUNDS}: {max(took_ms):.2f} ms)"
    return Diagnosis("round trip", found)


def enough_members(count: int, found: str) -> Diagnosis:
    """Judge the number of members that decide by majority."""
    if count < 3:
        return Diagnosis("members", found, "note", "losing one loses the locks")
    if count % 2 == 0:
        return Diagnosis("members", found, "note", "an even number tolerates no more losses")
    return Diagnosis("members", found)


def live_sessions(send: Callable[[Sessions], Reply]) -> int:
    """Count the sessions that have not ended; a store keeps ended ones for a while."""
    count, after = 0, ""
    while True:
        reply = send(Sessions(after, PAGE))
        assert isinstance(reply, SessionsReply)
        count += sum(not view.ended for view in reply.sessions)
        if not reply.more:
            return count
        after = reply.sessions[-1].session


def refuse_if_bad(label: str, findings: Iterable[Diagnosis]) -> None:
    """Raise StoreMisconfiguredError for the first finding that would break promises."""
    for finding in findings:
        if finding.verdict == "bad":
            raise StoreMisconfiguredError(label, f"{finding.what}: {finding.found}", finding.advice)
