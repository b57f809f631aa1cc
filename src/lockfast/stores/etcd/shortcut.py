"""The two steps that most locks ever take: a lock that nobody uses, and giving it back.

Nothing is decided here that the lock table does not decide: it is the same transaction,
written out for one claim that is alone at its resource, so that it costs little. Whatever
is not as simple as that, or not as believed, is left to `steps`.
"""

from __future__ import annotations

from operator import is_

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import HOLDING
from lockfast.core.modes import LOCK, MODES_OF_KIND
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.etcd.alone import Held
from lockfast.stores.etcd.knowledge import PAGE, Want
from lockfast.stores.etcd.outcome import Outcome
from lockfast.stores.etcd.requests import Keys, Kv, coded, revision_of
from lockfast.stores.etcd.rows import (
    STRIDE,
    Base,
    Living,
    Owner,
    Record,
    alone_key,
    decode,
    encode,
    end_of,
    packed_owner,
)
from lockfast.stores.etcd.shared import Row, Shared
from lockfast.stores.etcd.steps import Step

_MODES = MODES_OF_KIND[LOCK]


class Believed:
    """A session of ours and what else is compared, made ready to be sent."""

    def __init__(self, keys: Keys, record: Kv, living: Kv, base: Kv) -> None:
        self.kvs = record, living, base
        session, lives = Record(*decode(record.value)), Living(*decode(living.value))
        stored = Base(*decode(base.value))
        self.is_over = bool(session.ended or session.sentence)
        self.ends_ms = lives.renewed_ms + session.ttl_ms
        self.lowest = lives.lowest
        self.epoch, self.log_until_ms = stored.epoch, stored.log_until_ms
        of = Owner(session.owner, session.inbox, session.process, session.ttl_ms)
        self.owner = packed_owner(of, record.key[2:])
        self.same_base, self.same_session = (
            f'{{"key":"{keys.coded(kv.key)}","target":"MOD","mod_revision":"{kv.mod}"}}'
            for kv in (base, living)
        )


def _believed(shared: Shared, session: str) -> Believed | None:
    kvs = shared.believed(session)
    known = shared.ready.get(session)
    if isinstance(known, Believed) and all(map(is_, known.kvs, kvs)):
        return known
    if len(kvs) < 3:
        return None
    shared.ready[session] = made = Believed(shared.keys, *kvs)
    return made


async def shortcut(step: Step) -> Outcome | None:
    """Carry a command out, if it is as simple as that; None: `step` has to be run.

    What was learned on the way, that it is not as believed or that it may have been done,
    `step` knows then.
    """
    command, now, shared = step.command, step.now, step.shared
    if not isinstance(command, c.Enter | c.Leave) or now.now_ms >= shared.due_ms:
        return None
    believed = _believed(shared, command.session)
    if (
        believed is None
        or believed.is_over
        or believed.log_until_ms > now.wall_us // 1000
        or (not now.by_lease and believed.ends_ms <= now.now_ms)
    ):
        return None
    if isinstance(command, c.Enter):
        return await _enter(step, command, believed)
    return await _leave(step, command, believed)


async def _enter(step: Step, command: c.Enter, believed: Believed) -> Outcome | None:
    (
        session, n, places, actor, _, priority, head_start_ms, max_hold_ms, lock_delay_ms, block,
        text, _, window_ms,
    ) = command  # fmt: skip
    shared, now_ms = step.shared, step.now.now_ms
    if (
        max_hold_ms
        or lock_delay_ms
        or window_ms
        or block != 1
        or text is not None
        or len(places) != 1
        or places[0] in shared.busy
        or n < believed.lowest
        or shared.claims[session] >= step.limits.claims_max
    ):
        return None
    kind, name, mode, _, _ = places[0]
    numbers, alone = shared.numbers_of(session), shared.alone_of(session)
    if kind != LOCK or mode not in _MODES or numbers.has(n):
        return None
    prefix = f"r\x1f{kind}\x1f{name}\x1f"
    word = alone_key(session, prefix)
    has_word = alone.has_word(word)
    if not has_word and alone.is_full():
        return None
    rank = r.rank_of(now_ms - head_start_ms, shared.arrival(shared.cluster.revision))
    token = f"+{believed.epoch}"
    claim = [
        session,
        n,
        [[kind, name, mode]],
        HOLDING,
        rank,
        actor,
        priority,
        now_ms,
        token,
        now_ms,
    ]
    value = encode([[believed.owner, claim], 1])
    key = shared.keys.coded(prefix)
    puts = f'{{"request_put":{{"key":"{key}","value":"{coded(value.encode())}"}}}}'
    if not has_word:
        puts += f',{{"request_put":{{"key":"{shared.keys.coded(word)}"}}}}'
    body = (
        f'{{"compare":[{believed.same_base},{believed.same_session},{{"key":"{key}"}}],'
        f'"success":[{puts}]}}'
    )
    try:
        answer = await step.gateway.txn(body.encode(), step.until_s)
    except BaseException as error:
        step.broke_off(error, believed.kvs[1])
        if isinstance(error, OutcomeUnknownError):
            return None
        raise
    if not answer.get("succeeded"):
        shared.met(places[0])
        return None
    revision = revision_of(answer)
    given = believed.epoch + STRIDE * revision
    shared.claims[session] += 1
    numbers.enter(n)
    alone.hold(n, Held(given, word, revision))
    shared.hold(session, n, Row(prefix, value, revision))
    return Outcome(c.Granted(given, 0, mode))


async def _leave(step: Step, command: c.Leave, believed: Believed) -> Outcome | None:
    """If no key of the resource was written since we took it, nobody has come.

    If the row is gone nevertheless nothing is deleted: the answer shows that it was ours.
    """
    shared = step.shared
    session, n, places, close_ms = command
    row = shared.held(session, n)
    numbers = shared.numbers_of(session)
    if close_ms or len(places) != 1 or not isinstance(row, Row) or n not in numbers.answered:
        return None
    key, end = shared.keys.coded(row.key), shared.keys.coded(end_of(row.key))
    body = (
        f'{{"compare":[{believed.same_base},{{"key":"{key}","range_end":"{end}",'
        f'"target":"MOD","result":"LESS","mod_revision":"{row.mod + 1}"}}],'
        f'"success":[{{"request_delete_range":{{"key":"{key}"}}}}],'
        f'"failure":[{{"request_range":{{"key":"{key}","range_end":"{end}","limit":"{PAGE}"}}}}]}}'
    )
    shared.let_go(session, n)
    try:
        answer = await step.gateway.txn(body.encode(), step.until_s)
    except OutcomeUnknownError as error:
        step.broke_off(error)
        return None
    if not answer.get("succeeded"):
        step.was_not_so(answer, [Want.resource(row.key)])
        return None
    if not answer["responses"][0]["response_delete_range"].get("deleted"):
        return None
    numbers.finish(n)
    shared.left(session, n)
    shared.claims[session] -= 1
    shared.busy.discard(places[0])
    return Outcome(c.Done())
