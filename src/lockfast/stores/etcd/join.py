"""Join the line of a lock that others hold, in one request and without reading first.

    if   the session is as known, somebody holds the lock, no claim of several places has a
         reservation there, and nobody stands behind our place in line
    then put the waiting key, and read the line
    else read what is so

A claim in line is always right, and since somebody holds the lock, whoever removes the last
holder finds our key and sees to it. So more need not be compared, and any number of joins may
travel together. What was read after the put is given to the lock table, which says whom the claim
waits for, or grants it. Only exclusive claims join like this: others may be compatible with the
holders, so the table decides first.
"""

from __future__ import annotations

from lockfast.core import commands as c
from lockfast.core.commands import WAITING
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim, rank_of
from lockfast.core.table import why_invalid
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.gateway import Gateway, Proposal, Slot
from lockfast.stores.etcd.layout import Owner
from lockfast.stores.etcd.order import tail_of
from lockfast.stores.etcd.requests import Found, Kv, Range
from lockfast.stores.etcd.steps import LIMITS, Context, Joined, Outcome, Step, assumed
from lockfast.stores.etcd.transport import Json
from lockfast.stores.etcd.view import WINDOW, Instant, Known


async def join(
    gateway: Gateway, context: Context, command: c.Enter, until_ms: int, given: Instant | None
) -> Outcome | Known | None:
    """The outcome if the claim stands in line; else what is so, if that was read."""
    own = context.own.get(command.session)
    known = assumed(context, own) if own is not None else None
    if own is None or own.record is None or known is None or not _can_join(command, context):
        return None
    if own.is_used(command.n) or len(own.claims) >= LIMITS.claims_max:
        return None
    keys, record, base = gateway.keys, own.record, known.parsed[k.EPOCH_KEY]
    wall_us = gateway.network.wall_us()
    instant = given or Instant(wall_us // 1000, wall_us)
    place, owner = command.places[0], Owner(*record[:5])
    claim = Claim(
        command.session, command.n, command.places, WAITING,
        rank_of(
            instant.now_ms - command.head_start_ms,
            context.own.next_arrival(gateway.cluster.revision),
        ),
        command.actor, command.priority, instant.now_ms, 0, 0, 0, command.max_hold_ms,
        command.lock_delay_ms, command.block, command.value, window_ms=command.window_ms,
    )  # fmt: skip
    prefix = k.resource_prefix(place.kind, place.name)
    end, key = k.end_of(prefix), k.line_key(prefix, "w", claim.rank, claim.session, claim.n)
    value = k.packed_claim(claim, owner, 0, 0)
    session = k.session_key(own.id)
    window = Range(prefix, end, WINDOW)
    before = Range(f"{prefix}w\x1f", f"{prefix}w\x1f{claim.rank}", 2, True)
    instead = [Range(k.EPOCH_KEY), Range(session), window, tail_of(prefix)]
    wall_ms = instant.wall_us // 1000
    event = c.Event(
        0, wall_ms, "waiting", place.kind, place.name, place.mode, claim.session, claim.n,
        owner.owner, 0, "",
    )  # fmt: skip

    def body(slot: Slot) -> Json:
        success = [keys.put(key, value, record.lease), *keys.reads([window, before])]
        if base.log_until_ms > wall_ms:
            packed = k.encode([k.packed_event(event, base.epoch, slot.tokens)])
            success.append(keys.put(f"l\x1f{slot.order:02}", packed))
        return {
            "compare": [
                keys.unchanged(session, own.mod),
                keys.present(f"{prefix}h\x1f", f"{prefix}h "),
                keys.absent(f"{prefix}v\x1f", f"{prefix}v "),
                keys.absent(key, f"{prefix}w "),
            ],
            "success": success,
            "failure": keys.reads(instead),
        }

    own.doubt(claim)
    scopes = frozenset([prefix, session])
    try:
        answer, _ = await gateway.txn(Proposal(body, 5, frozenset([key]), 0, scopes), until_ms)
    except LeaseGoneError:
        own.undoubt(command.n)
        return None
    except StoreUnavailableError:
        own.undoubt(command.n)
        raise
    if not answer.succeeded:
        own.undoubt(command.n)
        now = Known(answer.revision)
        for index, one in enumerate(instead):
            now.learn(one, answer.found(index))
        if not now.found[window].count:
            context.busy.pop(prefix, None)
        return now
    own.saw(command.n)
    known.revision = answer.revision
    known.learn(window, answer.found(1))
    known.learn(before, answer.found(2))
    known.learn(Range(key), Found([Kv(key, value, answer.revision)], 1))
    context.met(prefix, known.found[window].count)
    joined = Joined(claim.session, claim.n, claim.places)
    try:
        return await Step(gateway, context, joined, until_ms, given).run(known)
    except StoreUnavailableError as error:
        # The claim stands in line: the error must not say that nothing was done.
        raise OutcomeUnknownError(error.store, error.what, error.advice) from error


def _can_join(command: c.Enter, context: Context) -> bool:
    if not command.queue or len(command.places) != 1 or why_invalid(command.places, 1):
        return False
    place, value = command.places[0], command.value
    waiting = context.busy.get(k.resource_prefix(place.kind, place.name))
    if place.mode != EXCLUSIVE or waiting is None or waiting >= LIMITS.waiting_max:
        return False
    return value is None or len(value.encode()) <= LIMITS.text_max
