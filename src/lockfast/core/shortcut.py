"""The two steps that most locks ever take: into an empty line, and out of it again.

Nothing is decided here that `lines` and `table` do not decide: it is the same, written
out for one claim on one resource with nobody else there, so that an uncontended lock
costs little. Whatever is not as simple as that is left to them.
"""

from __future__ import annotations

from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import HOLDING, Done, Enter, Event, Granted, Leave
from lockfast.core.modes import LOCK, MODES_OF_KIND
from lockfast.core.rows import (
    SHARD_KEY,
    Claim,
    ResourceRow,
    Rows,
    Session,
    Shard,
    claim_key,
    rank_of,
)

_MODES = MODES_OF_KIND[LOCK]


def enter_free(
    rows: Rows, command: Enter, now_ms: int, wall_us: int, claims_max: int
) -> Granted | None:
    """Grant a claim on a lock that nobody uses; None if it is not as simple as that."""
    (
        session_id, n, places, actor, _, priority, head_start_ms, max_hold_ms, lock_delay_ms,
        block, value, opening, window_ms,
    ) = command  # fmt: skip
    if (
        max_hold_ms
        or window_ms
        or block != 1
        or value is not None
        or opening is not None
        or len(places) != 1
    ):
        return None
    kind, name, mode, _, _ = places[0]
    if kind != LOCK or mode not in _MODES:
        return None
    session_key = f"s\x1f{session_id}"
    shard: Shard | None = rows.get(SHARD_KEY)
    session: Session | None = rows.get(session_key)
    if (
        shard is None
        or now_ms >= shard.due_ms
        or shard.watchers
        or session is None
        or now_ms >= session.deadline_ms
        or session.ended
        or n != session.highest + 1
        or session.claims >= claims_max
    ):
        return None
    key = f"r\x1f{kind}\x1f{name}"
    if rows.get(key) is not None:
        return None
    shard.position = position = shard.position + 1
    token = shard.token + 1
    if token < wall_us:
        token = wall_us
    shard.token = token
    rank = rank_of(now_ms - head_start_ms, position)
    rows.add(key, ResourceRow(kind, name, {mode: 1}, {}, 1, 0, 0, f"{rank}\x1f{session_id}\x1f{n}"))
    rows.add(
        claim_key(session_id, n),
        Claim(
            session_id, n, places, HOLDING, rank, actor, priority, now_ms, token, now_ms, 0, 0,
            lock_delay_ms,
        ),
    )  # fmt: skip
    session.highest = n
    session.claims += 1
    session.checksum = (session.checksum + mix(n, token)) % MODULUS
    rows.put(session_key, session)
    rows.put(SHARD_KEY, shard)
    if rows.logs:
        rows.append(
            Event(
                position, wall_us // 1000, "granted", kind, name, mode, session_id, n,
                session.owner, token, "",
            )
        )  # fmt: skip
    return Granted(token, 0, mode)


def leave_alone(rows: Rows, command: Leave, now_ms: int, wall_us: int) -> Done | None:
    """Take out the only claim at a resource; None if it is not as simple as that."""
    session_id, n, _, close_ms = command
    if close_ms:
        return None
    session_key = f"s\x1f{session_id}"
    key_of_claim = claim_key(session_id, n)
    shard: Shard | None = rows.get(SHARD_KEY)
    session: Session | None = rows.get(session_key)
    claim: Claim | None = rows.get(key_of_claim)
    if (
        shard is None
        or now_ms >= shard.due_ms
        or shard.watchers
        or session is None
        or now_ms >= session.deadline_ms
        or session.ended
        or claim is None
        or claim.state != HOLDING
        or claim.until_ms
        or claim.block != 1
        or len(claim.places) != 1
    ):
        return None
    kind, name, mode, _, _ = claim.places[0]
    key = f"r\x1f{kind}\x1f{name}"
    resource: ResourceRow = rows.get(key)
    if (
        not resource.sole
        or resource.waiting
        or resource.reservations
        or resource.closed_ms
        or resource.converting
    ):
        return None
    rows.delete(key)
    rows.delete(key_of_claim)
    token = claim.token
    session.claims -= 1
    session.checksum = (session.checksum - mix(n, token)) % MODULUS
    shard.position = position = shard.position + 1
    rows.put(session_key, session)
    rows.put(SHARD_KEY, shard)
    if rows.logs:
        rows.append(
            Event(
                position, wall_us // 1000, "released", kind, name, mode, session_id, n,
                session.owner, token, "",
            )
        )  # fmt: skip
    return Done()
