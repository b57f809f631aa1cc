"""Fast paths for the common case: claims with one exclusive place.

They cover entering a free lock, releasing it, and granting it to the next claim. The results
equal those of `lines` and `table`, which handle every other case.
"""

from __future__ import annotations

from lockfast.core.checksum import MODULUS, mix
from lockfast.core.commands import (
    HOLDING,
    WAKE_GRANTED,
    Done,
    Enter,
    Event,
    Granted,
    Leave,
    Wake,
)
from lockfast.core.modes import EXCLUSIVE, LOCK, MODES_OF_KIND
from lockfast.core.rows import (
    META_KEY,
    Claim,
    Meta,
    ResourceRow,
    Rows,
    Session,
    after_prefix,
    claim_key,
    line_prefix,
    parse_ref,
    rank_of,
)
from lockfast.core.tokens import next_token

_MODES = MODES_OF_KIND[LOCK]


def enter_free(
    rows: Rows, command: Enter, now_ms: int, wall_us: int, claims_max: int
) -> tuple[Granted, list[Wake]] | None:
    """Grant a claim on a lock that is not in use. Return None if the fast path does not apply."""
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
    meta: Meta | None = rows.get(META_KEY)
    session: Session | None = rows.get(session_key)
    if (
        meta is None
        or now_ms >= meta.due_ms
        or meta.watchers
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
    meta.position = position = meta.position + 1
    token = next_token(meta, wall_us)
    rank = rank_of(now_ms - head_start_ms, position)
    rows.add(key, ResourceRow(kind, name, {mode: 1}, {}, 1, 0, 0, f"{rank}\x1f{session_id}\x1f{n}"))
    claim = Claim(
        session_id, n, places, HOLDING, rank, actor, priority, now_ms, token, now_ms, 0, 0,
        lock_delay_ms,
    )  # fmt: skip
    rows.add(claim_key(session_id, n), claim)
    session.highest = n
    session.claims += 1
    session.checksum = (session.checksum + mix(n, token)) % MODULUS
    rows.put(session_key, session)
    rows.put(META_KEY, meta)
    if rows.logs:
        _log(rows, meta, wall_us, "granted", claim, session)
    return Granted(token, 0, mode), []


def leave_alone(
    rows: Rows, command: Leave, now_ms: int, wall_us: int
) -> tuple[Done, list[Wake]] | None:
    """Remove the only holder of a resource and grant the first waiting claim.

    Return None if the fast path does not apply.
    """
    session_id, n, _, close_ms = command
    if close_ms:
        return None
    session_key = f"s\x1f{session_id}"
    key_of_claim = claim_key(session_id, n)
    meta: Meta | None = rows.get(META_KEY)
    session: Session | None = rows.get(session_key)
    claim: Claim | None = rows.get(key_of_claim)
    if (
        meta is None
        or now_ms >= meta.due_ms
        or meta.watchers
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
    kind, name, _, _, _ = claim.places[0]
    key = f"r\x1f{kind}\x1f{name}"
    resource: ResourceRow = rows.get(key)
    if not resource.sole or resource.reservations or resource.closed_ms or resource.converting:
        return None
    heir = None
    if resource.waiting:
        heir = _first_in_line(rows, resource)
        if heir is None:
            return None
    rows.delete(key_of_claim)
    token = claim.token
    session.claims -= 1
    session.checksum = (session.checksum - mix(n, token)) % MODULUS
    rows.put(session_key, session)
    meta.position += 1
    if rows.logs:
        _log(rows, meta, wall_us, "released", claim, session)
    wakes: list[Wake] = []
    if heir is None:
        rows.delete(key)
    else:
        # If both claims belong to one session, use one row object: `get` may return copies.
        heirs = session if heir.session == session_id else rows.get(f"s\x1f{heir.session}")
        wakes.append(_let_in(rows, heir, heirs, meta, now_ms, wall_us))
        resource.held = {heir.places[0].mode: 1}
        resource.waiting -= 1
        resource.sole = f"{heir.rank}\x1f{heir.session}\x1f{heir.n}"
        rows.put(key, resource)
    rows.put(META_KEY, meta)
    return Done(), wakes


def _first_in_line(rows: Rows, resource: ResourceRow) -> Claim | None:
    """Return the next claim if granting it is the only change; None if there is more to do."""
    prefix = line_prefix("w", resource.kind, resource.name)
    ((_, ref),) = rows.scan(prefix, after_prefix(prefix), 1)
    claim: Claim = rows.get(claim_key(*parse_ref(ref)))
    if (
        len(claim.places) != 1
        or claim.places[0].mode != EXCLUSIVE
        or claim.max_hold_ms
        or claim.block != 1
        or claim.window_ms
        or claim.value is not None
    ):
        return None
    return claim


def _let_in(
    rows: Rows, claim: Claim, session: Session, meta: Meta, now_ms: int, wall_us: int
) -> Wake:
    """Grant a waiting claim its only place."""
    kind, name, _, _, _ = claim.places[0]
    rows.delete(line_prefix("w", kind, name) + claim.rank)
    token = next_token(meta, wall_us)
    claim.state = HOLDING
    claim.token = token
    claim.granted_ms = now_ms
    rows.put(claim_key(claim.session, claim.n), claim)
    session.checksum = (session.checksum + mix(claim.n, token) - mix(claim.n, 0)) % MODULUS
    rows.put(f"s\x1f{claim.session}", session)
    meta.position += 1
    if rows.logs:
        _log(rows, meta, wall_us, "granted", claim, session)
    return Wake(session.inbox, claim.session, claim.n, WAKE_GRANTED, token)


def _log(rows: Rows, meta: Meta, wall_us: int, what: str, claim: Claim, session: Session) -> None:
    """Write an event of a claim to the log, at the position just counted."""
    kind, name, mode, _, _ = claim.places[0]
    rows.append(
        Event(
            meta.position, wall_us // 1000, what, kind, name, mode, claim.session, claim.n,
            session.owner, claim.token, "",
        )
    )  # fmt: skip
