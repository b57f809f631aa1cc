"""The two steps that most locks ever take: into an empty line, and out of it again.

Nothing is decided here that `lines` and `table` do not decide: it is the same, written
out for one claim on one resource with nobody else there, so that an uncontended lock
costs little. Whatever is not as simple as that is left to them.
"""

from __future__ import annotations

from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import HOLDING, Enter, Event, Granted, Leave
from lockfast.core.modes import LOCK, MODES_OF_KIND
from lockfast.core.rows import Claim, ResourceRow, Rows, Session, Shard, rank_of


def enter_free(
    rows: Rows, shard: Shard, session: Session, command: Enter, now_ms: int, wall_us: int
) -> Granted | None:
    """Grant a claim on a lock that nobody uses; None if it is not as simple as that."""
    places = command.places
    n = command.n
    if (
        n != session.highest + 1
        or len(places) != 1
        or command.block != 1
        or command.max_hold_ms
        or command.window_ms
        or command.value is not None
    ):
        return None
    kind, name, mode, _, _ = places[0]
    if kind != LOCK or mode not in MODES_OF_KIND[LOCK]:
        return None
    key = f"r\x1f{kind}\x1f{name}"
    if rows.get(key) is not None:
        return None
    session_id = command.session
    shard.position = position = shard.position + 1
    shard.token = token = max(shard.token + 1, wall_us)
    rank = rank_of(now_ms - command.head_start_ms, position)
    sole = f"{rank}\x1f{session_id}\x1f{n}"
    rows.put(key, ResourceRow(kind, name, {mode: 1}, {}, 1, 0, 0, sole))
    rows.put(
        f"c\x1f{session_id}\x1f{n:016x}",
        Claim(
            session_id,
            n,
            places,
            HOLDING,
            rank,
            command.actor,
            command.priority,
            now_ms,
            token,
            now_ms,
            0,
            0,
            command.lock_delay_ms,
        ),
    )
    session.highest = n
    session.claims += 1
    session.checksum = (session.checksum + mix(n, token)) % MODULUS
    rows.append(
        Event(
            position, wall_us // 1000, "granted", kind, name, mode, session_id, n,
            session.owner, token, "",
        )
    )  # fmt: skip
    return Granted(token, 0, mode)


def leave_alone(
    rows: Rows, shard: Shard, session: Session, claim: Claim, command: Leave, wall_us: int
) -> bool:
    """Take out the only claim at a resource; False if it is not as simple as that."""
    if (
        claim.state != HOLDING
        or len(claim.places) != 1
        or claim.until_ms
        or claim.block != 1
        or command.close_ms
    ):
        return False
    kind, name, mode, _, _ = claim.places[0]
    key = f"r\x1f{kind}\x1f{name}"
    resource: ResourceRow = rows.get(key)
    if (
        resource.holders != 1
        or not resource.sole
        or resource.waiting
        or resource.reservations
        or resource.closed_ms
        or resource.converting
    ):
        return False
    n, token = claim.n, claim.token
    rows.delete(key)
    rows.delete(f"c\x1f{claim.session}\x1f{n:016x}")
    session.claims -= 1
    session.checksum = (session.checksum - mix(n, token)) % MODULUS
    shard.position += 1
    rows.append(
        Event(
            shard.position, wall_us // 1000, "released", kind, name, mode, claim.session, n,
            session.owner, token, "",
        )
    )  # fmt: skip
    return True
