"""Open, renew and end sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockfast.core import commands as c
from lockfast.core.commands import Place, Reply, Wake
from lockfast.core.reasons import CLOSED, EXPIRED
from lockfast.core.table import ENDED_KEPT_MS, why_too_large
from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.derived.endings import Ending
from lockfast.stores.derived.steps import LIMITS, Instant, Outcome
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests, make_namespace, raise_base, read_session
from lockfast.stores.zookeeper.layout import Record
from lockfast.stores.zookeeper.loading import Purge, load_all
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.steps import Step, settle
from lockfast.stores.zookeeper.transport import (
    NO_NODE,
    NODE_EXISTS,
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    Set,
    Sync,
)

PROVED_PER_RENEWAL: Final = 100
TIDIED_MAX: Final = 100


def link_timeout_ms(ttl_ms: int) -> int:
    """Return the session timeout to request from ZooKeeper.

    A member of the ensemble reports to the leader only every half tick which sessions it has heard
    from. If the member dies, the leader counts from its last report. Half a tick is at most a
    quarter of the shortest session timeout, so a third more than the TTL covers it.
    """
    return ttl_ms + -(-ttl_ms // 3)


async def open_session(requests: Requests, own: OwnSession, command: c.Open) -> Reply:
    """Open a session on the link of these requests."""
    context, link = requests.context, requests.link
    refused = why_too_large(command, LIMITS.text_max)
    if refused is not None:
        return refused
    if link.timeout_ms < link_timeout_ms(command.ttl_ms):
        raise StoreMisconfiguredError(
            context.label,
            f"ends sessions after {link.timeout_ms} ms, a TTL of {command.ttl_ms} ms needs "
            f"{link_timeout_ms(command.ttl_ms)} ms",
            "raise maxSessionTimeout in its configuration, or use a shorter TTL",
        )
    now = context.instant()
    paths = context.paths
    record = Record(
        command.ttl_ms, command.owner, command.process, command.inbox, command.metadata, now.now_ms
    )
    alive = k.data_of([0, now.now_ms])
    while True:
        (answer,) = await requests.call(
            Multi(
                (
                    Create(paths.session(own.id), k.data_of(list(record)), True),
                    Create(paths.bell(own.id), b"", True),
                    Create(paths.alive_of(own.id), b"", True),
                    Set(paths.alive_of(own.id), alive),
                )
            )
        )
        if answer.error == NO_NODE:
            await make_namespace(requests)
            continue
        break
    if answer.error == NODE_EXISTS:
        # An earlier attempt of ours was executed, unless the session has been ended since.
        (node,) = await requests.call(Exists(paths.session(own.id)))
        if node.stat is None or node.stat.version:
            return c.Ended(EXPIRED)
    # Before the session counts as open: another attempt would not raise the base.
    await raise_base(requests)
    own.row = record.row(own.id, now.now_ms + command.ttl_ms)
    await _tidy(requests, now)
    return c.Done(found=False)


async def _tidy(requests: Requests, now: Instant) -> None:
    """Delete tombstones that are older than ENDED_KEPT_MS."""
    tombs = requests.context.paths.tombs
    (found,) = await requests.call(Children(tombs))
    old = [node for node in found.children if k.tomb_of(node)[0] + ENDED_KEPT_MS <= now.now_ms]
    if old:
        await requests.call(*(Delete(f"{tombs}/{node}") for node in sorted(old)[:TIDIED_MAX]))


async def opened_before(requests: Requests, own: OwnSession) -> Reply:
    """Return the reply to a second attempt to open a session."""
    (node,) = await requests.call(Exists(requests.context.paths.session(own.id)))
    if node.stat is None:
        own.end(EXPIRED)
    return c.Ended(own.ended, own.by) if own.ended else c.Done()


async def renew(requests: Requests, own: OwnSession, command: c.Renew) -> Outcome:
    """Renew a session by a write, which only a leader with a majority can commit."""
    context = requests.context
    now = context.instant()
    paths = context.paths
    # Skip claims in doubt: the retry of their enter resolves them.
    with own.mutex:
        claims = sorted(item for item in own.claims.items() if item[0] not in own.doubted)
    chosen = [item for item in claims if item[0] > own.proved_up_to][:PROVED_PER_RENEWAL]
    own.proved_up_to = chosen[-1][0] if len(chosen) == PROVED_PER_RENEWAL else 0
    assert own.row is not None
    alive = k.data_of([own.row.renewals + 1, now.now_ms])
    renewing = Multi((Check(paths.session(own.id), 0), Set(paths.alive_of(own.id), alive)))
    proofs = [Exists(f"{paths.resource(*claim.places[0][:2])}/{claim.node}") for _, claim in chosen]
    answer, *found = await requests.call(renewing, *proofs)
    if answer.error:
        own.abandon(await read_session(requests, own.id))
        return Outcome(c.Ended(own.ended, own.by))
    context.own.renewed(own)
    own.row.renewals += 1
    own.row.deadline_ms = now.now_ms + own.row.ttl_ms
    own.forget_below(command.lowest)
    looks: list[tuple[int, c.Granted | c.Queued | c.Gone]] = []
    outcome = Outcome(c.Done())
    for (n, claim), proof in zip(chosen, found, strict=True):
        version = proof.stat.version if proof.stat is not None else -1
        if version == claim.version or own.claims.get(n) is not claim:
            continue
        if n not in command.waiting:
            step = Step(requests, c.Look(own.id, n))
            outcome = outcome.followed_by(await step.run())
        if n in own.claims:
            own.claims[n].version = version
    for n in command.waiting:
        looked = await look(requests, c.Look(own.id, n))
        if not isinstance(looked.reply, c.Granted | c.Queued | c.Gone):
            return looked
        looks.append((n, looked.reply))
        outcome = outcome.followed_by(looked)
    row = own.session_row()
    matches = (command.count, command.checksum) == (row.claims, row.checksum)
    return outcome._replace(reply=c.Renewed(matches, tuple(looks)))


async def look(requests: Requests, command: c.Look) -> Outcome:
    """Look at a claim; the reply includes the renewal counts of the claims ahead."""
    outcome = await Step(requests, command).run()
    reply, paths = outcome.reply, requests.context.paths
    if not isinstance(reply, c.Queued) or not reply.ahead:
        return outcome
    answers = await requests.call(*(Get(paths.alive_of(one.session)) for one in reply.ahead))
    ahead = tuple(
        one._replace(renewals=k.alive_from(answer.data)[0]) if answer.data else one
        for one, answer in zip(reply.ahead, answers, strict=True)
    )
    return outcome._replace(reply=reply._replace(ahead=ahead))


async def end(requests: Requests, endings: Sequence[Ending]) -> Outcome:
    """End sessions over another session's link, then grant what they held.

    First each session is marked as ended, so that it can neither enter nor be granted anything.
    Then its claims are removed. If this is interrupted, the session's client closes it as soon as
    it learns of the mark, or else ZooKeeper ends it for lack of keep-alives. The reply says whether
    any of them was still open.
    """
    wakes: list[Wake] = []
    marked = [ending for ending in endings if await _mark(requests, ending, wakes)]
    requests.context.own.deliver(wakes)
    outcome = Outcome(c.Done(bool(marked)), wakes)
    for ending in marked:
        for place in await _places_of(requests, ending.session):
            purge = Purge(ending.session, ending.reason, ending.what, (place,))
            step = Step(requests, purge)
            outcome = outcome.followed_by(await step.run())
            outcome = outcome.followed_by(await settle(requests, step.unsettled))
    return outcome


async def _mark(requests: Requests, ending: Ending, wakes: list[Wake]) -> bool:
    context, session = requests.context, ending.session
    row = await read_session(requests, session)
    if row is None or row.ended or ending.renewals not in (None, row.renewals):
        return False
    record = Record(
        row.ttl_ms, row.owner, row.process, row.inbox, row.metadata, row.opened_ms,
        ending.reason, ending.by, ending.what,
    )  # fmt: skip
    data = k.data_of(list(record))
    tomb = Create(context.paths.tomb(session, context.instant().now_ms), data)
    marking = Set(context.paths.session(session), data, 0)
    (answer,) = await requests.call(Multi((marking, tomb)))
    if answer.error:
        return False
    if ending.what != "released":
        wakes.append(Wake(row.inbox, session, 0, c.WAKE_ENDED))
    own = context.own.get(session)
    if own is not None:
        own.end(ending.reason, ending.by)
    return True


async def _places_of(requests: Requests, session: str) -> list[Place]:
    """Return the resources where a session has claims."""
    own = requests.context.own.get(session)
    if own is not None:
        with own.mutex:
            claims = [claim.places for claim in own.claims.values()]
    else:
        await requests.call(Sync(requests.context.paths.root))
        entries = [e for one in await load_all(requests) for e in one.document.entries.values()]
        claims = [entry.claim.places for entry in entries if entry.claim.session == session]
    return list(dict.fromkeys(Place(*place[:2], "") for places in claims for place in places))


async def close(requests: Requests, own: OwnSession) -> Outcome:
    """End one of our sessions: hand over what it holds, then end the ZooKeeper session."""
    paths = requests.context.paths
    try:
        outcome = await end(requests, [Ending(own.id, CLOSED, "released")])
        # The link is closed in the background, so delete its nodes before this returns.
        nodes = (paths.session(own.id), paths.alive_of(own.id), paths.bell(own.id))
        await requests.call(*map(Delete, nodes))
        requests.link.close()
        return outcome
    finally:
        own.end(EXPIRED)
