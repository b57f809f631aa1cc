"""Open, renew and end sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockfast.core import commands as c
from lockfast.core.commands import Place, Reply, Wake
from lockfast.core.reasons import CLOSED, EXPIRED
from lockfast.core.rows import Session
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.endings import Ending
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.layout import Record
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.steps import (
    LIMITS,
    Outcome,
    Purge,
    Requests,
    Step,
    deliver_all,
    load_all,
    make_namespace,
    raise_base,
    read_session,
    settle,
)
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
from lockfast.stores.zookeeper.view import Instant

PROVED_PER_RENEWAL: Final = 100
TIDIED_MAX: Final = 100


def link_timeout_ms(ttl_ms: int) -> int:
    """Return the session timeout to request from ZooKeeper.

    A member of the ensemble reports to the leader only every half tick which sessions it has heard
    from. If the member dies, the leader counts from its last report. Half a tick is at most a
    quarter of the shortest session timeout, so a third more than the TTL covers it.
    """
    return ttl_ms + -(-ttl_ms // 3)


async def open_session(
    requests: Requests, own: OwnSession, command: c.Open, instant: Instant | None
) -> Reply:
    """Open a session on the link of these requests."""
    context, link = requests.context, requests.link
    for what, text in (("owner", command.owner), ("metadata", command.metadata)):
        size = len(text.encode())
        if size > LIMITS.text_max:
            return c.Refused(c.WHY_TOO_LARGE, what, size, LIMITS.text_max)
    if link.timeout_ms < link_timeout_ms(command.ttl_ms):
        raise StoreMisconfiguredError(
            context.label,
            f"ends sessions after {link.timeout_ms} ms, a TTL of {command.ttl_ms} ms needs "
            f"{link_timeout_ms(command.ttl_ms)} ms",
            "raise maxSessionTimeout in its configuration, or use a shorter TTL",
        )
    now = instant or context.instant()
    paths = context.paths
    record = Record(
        command.ttl_ms, command.owner, command.process, command.inbox, command.metadata, now.now_ms
    )
    alive = k.encode([0, now.now_ms]).encode()
    while True:
        (answer,) = await requests.call(
            Multi(
                (
                    Create(paths.session(own.id), k.encode(list(record)).encode(), True),
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
        (node,) = await requests.call(Exists(paths.session(own.id)))
        if own.record is None:  # an earlier attempt of ours was executed
            node_is_ours = node.stat is not None and node.stat.version == 0
            if not node_is_ours:
                return c.Ended(EXPIRED)
    own.record = record
    own.row = Session(
        own.id, command.ttl_ms, command.owner, command.metadata, command.inbox, command.process,
        now.now_ms, now.now_ms + command.ttl_ms,
    )  # fmt: skip
    await raise_base(requests, instant)
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


async def renew(
    requests: Requests, own: OwnSession, command: c.Renew, instant: Instant | None
) -> Outcome:
    """Renew a session by a write, which only a leader with a majority can commit."""
    context = requests.context
    now = instant or context.instant()
    paths = context.paths
    # Skip claims in doubt: the retry of their enter resolves them.
    with own.mutex:
        claims = sorted(item for item in own.claims.items() if item[0] not in own.doubted)
    chosen = [item for item in claims if item[0] > own.proved_up_to][:PROVED_PER_RENEWAL]
    own.proved_up_to = chosen[-1][0] if len(chosen) == PROVED_PER_RENEWAL else 0
    alive = k.encode([own.renewals + 1, now.now_ms]).encode()
    renewing = Multi((Check(paths.session(own.id), 0), Set(paths.alive_of(own.id), alive)))
    proofs = [Exists(f"{paths.resource(*claim.places[0][:2])}/{claim.node}") for _, claim in chosen]
    answer, *found = await requests.call(renewing, *proofs)
    if answer.error:
        row = await read_session(requests, own.id, now)
        own.abandon(row.ended or EXPIRED if row is not None else EXPIRED, row.by if row else "")
        return Outcome(c.Ended(own.ended, own.by))
    own.renewals += 1
    if own.row is not None:
        own.row.deadline_ms = now.now_ms + own.row.ttl_ms
    own.forget_below(command.lowest)
    looks: list[tuple[int, c.Granted | c.Queued | c.Gone]] = []
    wakes: list[Wake] = []
    events: list[c.Event] = []
    for (n, claim), proof in zip(chosen, found, strict=True):
        version = proof.stat.version if proof.stat is not None else -1
        if version == claim.version or own.claims.get(n) is not claim:
            continue
        if n not in command.waiting:
            outcome = await Step(requests, c.Look(own.id, n), instant).run()
            wakes += outcome.wakes
            events += outcome.events
        if n in own.claims:
            own.claims[n].version = version
    for n in command.waiting:
        outcome = await look(requests, c.Look(own.id, n), instant)
        if not isinstance(outcome.reply, c.Granted | c.Queued | c.Gone):
            return outcome
        looks.append((n, outcome.reply))
        wakes += outcome.wakes
        events += outcome.events
    row = own.session_row()
    assert row is not None
    matches = (command.count, command.checksum) == (row.claims, row.checksum)
    return Outcome(c.Renewed(matches, tuple(looks)), wakes, events)


async def look(requests: Requests, command: c.Look, instant: Instant | None) -> Outcome:
    """Look at a claim; the reply includes the renewal counts of the claims ahead."""
    outcome = await Step(requests, command, instant).run()
    reply, paths = outcome.reply, requests.context.paths
    if not isinstance(reply, c.Queued) or not reply.ahead:
        return outcome
    answers = await requests.call(*(Get(paths.alive_of(one.session)) for one in reply.ahead))
    ahead = tuple(
        one._replace(renewals=k.alive_from(answer.data)[0]) if answer.data else one
        for one, answer in zip(reply.ahead, answers, strict=True)
    )
    return outcome._replace(reply=reply._replace(ahead=ahead))


async def end(
    requests: Requests, endings: Sequence[Ending], instant: Instant | None = None
) -> tuple[list[bool], Outcome]:
    """End sessions over another session's link, then grant what they held.

    First each session is marked as ended, so that it can neither enter nor be granted anything.
    Then its claims are removed. If this is interrupted, the session's client closes it as soon as
    it learns of the mark, or else ZooKeeper ends it for lack of keep-alives. Return for each
    session whether this call ended it.
    """
    wakes: list[Wake] = []
    events: list[c.Event] = []
    found = [await _mark(requests, ending, instant, wakes) for ending in endings]
    deliver_all(requests.context.own, wakes)
    for ending, is_marked in zip(endings, found, strict=True):
        for place in await _places_of(requests, ending.session) if is_marked else ():
            purge = Purge(ending.session, ending.reason, ending.what, (place,))
            step = Step(requests, purge, instant)
            outcome = await step.run()
            rest = await settle(requests, step.unsettled, instant)
            wakes += [*outcome.wakes, *rest.wakes]
            events += [*outcome.events, *rest.events]
    return found, Outcome(c.Done(any(found)), wakes, events)


async def _mark(
    requests: Requests, ending: Ending, instant: Instant | None, wakes: list[Wake]
) -> bool:
    context, session = requests.context, ending.session
    row = await read_session(requests, session, instant or context.instant())
    if row is None or row.ended or ending.renewals not in (None, row.renewals):
        return False
    record = Record(
        row.ttl_ms, row.owner, row.process, row.inbox, row.metadata, row.opened_ms,
        ending.reason, ending.by, ending.what,
    )  # fmt: skip
    data = k.encode(list(record)).encode()
    tomb = Create(context.paths.tomb(session, (instant or context.instant()).now_ms), data)
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


async def _places_of(requests: Requests, session: str) -> Sequence[Place]:
    places: dict[Place, None] = {}
    own = requests.context.own.get(session)
    if own is not None:
        with own.mutex:
            claims = list(own.claims.values())
        for claim in claims:
            places.update({Place(*place[:2], ""): None for place in claim.places})
        return list(places)
    await requests.call(Sync(requests.context.paths.root))
    for one in await load_all(requests):
        if any(of[0] == session for of in one.document.entries):
            places[Place(one.kind, one.name, "")] = None
    return list(places)


async def close(requests: Requests, own: OwnSession, instant: Instant | None) -> Outcome:
    """End one of our sessions: hand over what it holds, then end the ZooKeeper session."""
    _, outcome = await end(requests, [Ending(own.id, CLOSED, "released")], instant)
    if own.link is not None:
        paths = requests.context.paths
        # The link is closed in the background, so delete its nodes before this returns.
        nodes = (paths.session(own.id), paths.alive_of(own.id), paths.bell(own.id))
        await requests.call(*map(Delete, nodes))
        own.link.close()
    return outcome
