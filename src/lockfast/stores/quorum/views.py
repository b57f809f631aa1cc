"""Merge the views of several nodes: a claim counts if a majority may have it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from lockfast.core import commands as c
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.reasons import NO_RECORD
from lockfast.stores.quorum import messages as m
from lockfast.stores.quorum.flights import Answers
from lockfast.stores.quorum.session_records import Claim, Phase


def _is_majority(count: int, answered: int, nodes: int) -> bool:
    """Return True if `count` nodes plus those that did not answer may be a majority."""
    return count > 0 and count + nodes - answered >= nodes // 2 + 1


def _chosen(holders: Iterable[m.Holder], answered: int, nodes: int) -> m.Holder | None:
    """Return the holder that most nodes report, if they may be a majority."""
    by_ballot: dict[tuple[str, int, int], list[m.Holder]] = {}
    for holder in holders:
        by_ballot.setdefault(holder[:3], []).append(holder)
    best = max(by_ballot.values(), key=len, default=[])
    if not _is_majority(len(best), answered, nodes):
        return None
    # The lease ends when a majority no longer has it.
    left = sorted((holder.left_ms for holder in best), reverse=True)
    left_ms = left[min(nodes // 2, len(left) - 1)]
    return best[0]._replace(left_ms=left_ms, renewals=max(h.renewals for h in best))


def blockers(taken: Sequence[m.Taken], nodes: int) -> tuple[c.Blocker, ...]:
    """Return the holder of the requested lock; none if no holder may have a majority."""
    found = _chosen((a.holder for a in taken if a.holder is not None), len(taken), nodes)
    if found is None:
        return ()
    return (
        c.Blocker(
            found.session,
            found.n,
            found.owner,
            found.process,
            found.renewals,
            True,
            found.ballot,
            found.for_ms,
        ),
    )


def claims_of(
    session: str, answers: Answers, believed: Mapping[int, Claim]
) -> tuple[c.ClaimView, ...]:
    """Return the claims that the session's client believes to hold.

    Those that are lost, or that no majority can have, are shown as revoked, so that the client
    releases them.
    """
    known = [answer for answer in answers if isinstance(answer, m.SessionClaims)]
    shown = {(claim.n, claim.ballot): claim for answer in known for claim in answer.claims}
    counts = Counter((claim.n, claim.ballot) for answer in known for claim in answer.claims)
    owner = next((answer.owner for answer in known if answer.owner), "")
    left_ms = max((answer.left_ms for answer in known), default=0)
    views = []
    for n, claim in sorted(believed.items()):
        key = n, claim.take.ballot
        is_held = claim.phase is Phase.HELD and _is_majority(counts[key], len(known), len(answers))
        views.append(
            c.ClaimView(
                session,
                n,
                owner,
                claim.take.actor,
                (claim.place,),
                c.HOLDING if is_held else c.REVOKED,
                claim.take.ballot,
                0,
                claim.take.value,
                shown[key].for_ms if is_held else 0,
                left_ms,
                reason="" if is_held else NO_RECORD,
            )
        )
    return tuple(views)


def resource(kind: str, name: str, answers: Answers) -> c.ResourceView:
    """Return the merged view of one lock."""
    pages = [answer for answer in answers if isinstance(answer, m.Locks)]
    return _merged(kind, name, [view for page in pages for view in page.locks], pages, answers)


def listing(kind: str, answers: Answers, limit: int) -> c.ListingReply:
    """Return the held locks, by name."""
    pages = [answer for answer in answers if isinstance(answer, m.Locks)]
    # A node with more locks than fit on its page says nothing about later names.
    ends = [page.locks[-1].name for page in pages if page.more and page.locks]
    end = min(ends, default=None)
    by_name: dict[str, list[m.LockView]] = {}
    for page in pages:
        for view in page.locks:
            if end is None or view.name <= end:
                by_name.setdefault(view.name, []).append(view)
    merged = [_merged(kind, name, by_name[name], pages, answers) for name in sorted(by_name)]
    found = tuple(view for view in merged if view.holder_count)
    return c.ListingReply(found[:limit], end is not None or len(found) > limit)


def _merged(
    kind: str,
    name: str,
    seen: Sequence[m.LockView],
    pages: Sequence[m.Locks],
    answers: Answers,
) -> c.ResourceView:
    found = _chosen((v.holder for v in seen if v.holder is not None), len(pages), len(answers))

    def by_majority(values: Iterable[int]) -> int:
        """Return the highest number that a majority has reached.

        A minority may be behind: it refused a claim that has won elsewhere, or missed a release.
        """
        highest, majority = sorted(values, reverse=True), len(answers) // 2 + 1
        return highest[majority - 1] if len(highest) >= majority else 0

    holders: tuple[c.ClaimView, ...] = ()
    if found is not None:
        holders = (
            c.ClaimView(
                found.session,
                found.n,
                found.owner,
                found.actor,
                (c.Place(kind, name, EXCLUSIVE),),
                c.HOLDING,
                found.ballot,
                0,
                found.value,
                found.for_ms,
                found.left_ms,
            ),
        )
    return c.ResourceView(
        kind,
        name,
        holders,
        (),
        len(holders),
        by_majority(view.contenders for view in seen),
        0,
        by_majority(view.closed_ms for view in seen),
    )


def sessions(answers: Answers, limit: int) -> c.SessionsReply:
    """Return the sessions, by id."""
    pages = [answer for answer in answers if isinstance(answer, m.NodeSessions)]
    ends = [page.sessions[-1].session for page in pages if page.more and page.sessions]
    end = min(ends, default=None)
    by_id: dict[str, list[m.NodeSession]] = {}
    for page in pages:
        for view in page.sessions:
            if end is None or view.session <= end:
                by_id.setdefault(view.session, []).append(view)
    ids = sorted(by_id)
    majority = len(answers) // 2 + 1
    merged = tuple(_merged_session(by_id[id_], majority) for id_ in ids[:limit])
    return c.SessionsReply(merged, end is not None or len(ids) > limit)


def _merged_session(seen: Sequence[m.NodeSession], majority: int) -> c.SessionView:
    live = [view for view in seen if not view.ended]
    ended = [view.ended for view in seen if view.ended]
    is_over = bool(ended) and len(live) < majority
    left = sorted((view.left_ms for view in live), reverse=True)
    first = seen[0]
    return c.SessionView(
        first.session,
        first.owner,
        first.metadata,
        first.process,
        first.ttl_ms,
        0 if is_over or not left else left[min(majority, len(left)) - 1],
        max(view.claims for view in seen),
        max(view.renewals for view in seen),
        max(ended, key=ended.count) if is_over else "",
        "",
    )
