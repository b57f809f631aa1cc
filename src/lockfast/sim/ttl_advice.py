"""Which TTL the recorded stalls call for.

Each candidate TTL is replayed against every stall: had the stall begun when a renewal was due, the
lease would have been lost if the stall lasted longer than the candidate's slack, which is the TTL
minus the margin minus the third that had already passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lockfast.flow.session import RENEWALS_PER_TTL
from lockfast.sim.keep_alives import Cause, SessionRecord, Stall, slack_us

CANDIDATES_S: Final = (1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
SAFETY: Final = 2
"""The recommended TTL survives a stall twice as long as the longest on record."""
KEEP_ALIVES_MIN: Final = 300
"""With fewer, a stall in one of a hundred keep-alives may be missing from the record (95 %)."""
RULE_OF_THREE: Final = 3
"""After n trials without an event, its rate is below 3/n with 95 % confidence."""


class Candidate(NamedTuple):
    """What one TTL would have meant."""

    ttl_s: float
    lost: int
    """Leases that would have been lost."""
    unknown: int
    """Leases whose fate cannot be told, because the client gave up before the stall was over."""
    stalls: int
    """Stalls that would have ended a session, whether it held a lease or not."""


class Advice(NamedTuple):
    """The figures, and the TTL to use; None if there is too little data."""

    sessions: int
    leases: int
    keep_alives: int
    failures: int
    observed_s: float
    """The time that all sessions together were under observation."""
    recorded_ttls_s: tuple[float, ...]
    gap_max_s: float
    reply_max_s: float
    stall_max: Stall | None
    stalls: dict[Cause, int]
    lost: int
    """Sessions that were really lost."""
    cut_off: int
    """Sessions whose record stops while they hold a lease."""
    candidates: tuple[Candidate, ...]
    ttl_s: float | None
    reason: str


def advise(records: Sequence[SessionRecord], ttls_s: Sequence[float] = CANDIDATES_S) -> Advice:
    """Work out what each TTL would have meant, and recommend one of them."""
    stalls = [(record, stall) for record in records for stall in record.stalls()]
    longest = max((stall for _, stall in stalls), key=lambda each: each.length_us, default=None)
    replies = [each.replied_us - each.sent_us for record in records for each in record.keep_alives]
    observed_us = sum(_observed_us(record) for record in records)
    keep_alives = len(replies)
    reply_max_us = max(replies, default=0)
    ttl_s, reason = _recommend(sorted(ttls_s), longest, reply_max_us, keep_alives)
    return Advice(
        sessions=len(records),
        leases=sum(len(record.leases) for record in records),
        keep_alives=keep_alives,
        failures=sum(len(record.failures) for record in records),
        observed_s=observed_us / 1e6,
        recorded_ttls_s=tuple(
            sorted({each.ttl_us / 1e6 for record in records for each in record.keep_alives})
        ),
        gap_max_s=max((record.gap_max_us() for record in records), default=0) / 1e6,
        reply_max_s=reply_max_us / 1e6,
        stall_max=longest,
        stalls={cause: sum(stall.cause is cause for _, stall in stalls) for cause in Cause},
        lost=sum(record.lost_us is not None for record in records),
        cut_off=sum(record.ends_held() for record in records),
        candidates=tuple(_replay(ttl, stalls) for ttl in sorted(ttls_s)),
        ttl_s=ttl_s,
        reason=reason,
    )


def _observed_us(record: SessionRecord) -> int:
    first, last = record.keep_alives[0], record.keep_alives[-1]
    return max(last.replied_us, record.lost_us or 0) - first.sent_us


def _replay(ttl_s: float, stalls: Sequence[tuple[SessionRecord, Stall]]) -> Candidate:
    slack = slack_us(round(ttl_s * 1000))
    lost = unknown = sessions = 0
    for record, stall in stalls:
        if stall.length_us >= slack:
            sessions += 1
            lost += record.held_at(stall.due_us + slack - 1)
        elif stall.at_least:
            # The leases were lost when the client gave up: with this TTL it would have waited.
            unknown += record.held_at(stall.due_us + stall.length_us - 1)
    return Candidate(ttl_s, lost, unknown, sessions)


def _recommend(
    ttls_s: Sequence[float], longest: Stall | None, reply_max_us: int, keep_alives: int
) -> tuple[float | None, str]:
    if keep_alives < KEEP_ALIVES_MIN:
        return None, (
            f"too little data: {keep_alives} keep-alives, at least {KEEP_ALIVES_MIN} are needed; "
            "record for longer, through a deployment and a backup, and keep your TTL until then"
        )
    if longest is not None and longest.at_least:
        return None, (
            f"a lease was lost after {_s(longest.length_us)} and the cause lasted longer than the "
            "recorded TTL; record again with a longer TTL to see how much longer"
        )
    stall_us = longest.length_us if longest is not None else 0
    for ttl_s in ttls_s:
        ttl_ms = round(ttl_s * 1000)
        third_us = ttl_ms * 1000 // RENEWALS_PER_TTL
        if slack_us(ttl_ms) >= SAFETY * stall_us and third_us >= SAFETY * reply_max_us:
            rate = max(1, keep_alives // RULE_OF_THREE)
            return ttl_s, (
                f"it survives twice the longest stall ({_s(stall_us)}) and twice the slowest "
                f"reply ({_s(reply_max_us)}); longer stalls may still occur, in up to 1 of {rate} "
                "keep-alives (95 % confidence)"
            )
    return None, (
        f"no candidate survives twice the longest stall ({_s(stall_us)}): "
        "remove its cause rather than raise the TTL"
    )


def _s(microseconds: int) -> str:
    return in_words(microseconds / 1e6)


def in_words(seconds: float) -> str:
    """Return a span with three digits and its unit."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
