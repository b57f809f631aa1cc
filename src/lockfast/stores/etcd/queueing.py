"""Standing in line in the same request that found the lock taken.

A writer that finds somebody there has to wait, whoever that is. So it need not look first:
its transaction takes the lock if it is free, and else puts it in line. The resource's row
stays as it is; whoever hands over compares the line as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import WAITING, Event, Reply
from lockfast.core.lines import Lines
from lockfast.core.modes import EXCLUSIVE
from lockfast.core.rows import Claim
from lockfast.stores.etcd.knowledge import Knowledge, Want
from lockfast.stores.etcd.plan import Plan
from lockfast.stores.etcd.requests import Found, Json, Keys, Kv
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    LOG_KEY,
    claim_from,
    encode,
    end_of,
    living_key,
    marker_of,
    packed_claim,
    packed_event,
    resource_from,
    stored_key,
    waiting_of,
)
from lockfast.stores.etcd.view import View

CLOCKS_APART_MS: Final = 1000
"""Whoever enters stands behind all who came this much earlier, by whatever clock."""


def may_queue(command: c.Command, reply: Reply) -> bool:
    """Whether a claim that would be granted if the lock were free may else just wait."""
    return (
        isinstance(command, c.Enter)
        and isinstance(reply, c.Granted)
        and command.queue
        and len(command.places) == 1
        and command.places[0].mode == EXCLUSIVE
        and command.block == 1
        and command.head_start_ms == 0
    )


class Queueing:
    """What to do instead of taking the lock, in the same transaction."""

    def __init__(self, plan: Plan, wall_us: int) -> None:
        view, command = plan.view, plan.view.command
        assert isinstance(command, c.Enter)
        self._wall_ms = wall_us // 1000
        self._keys: Keys = plan.keys
        self._command = command
        self._logs = plan.logs
        self._place = command.places[0]
        self._claim_key = r.claim_key(command.session, command.n)
        granted = view.changes[self._claim_key]
        assert isinstance(granted, Claim)
        self.claim = replace(granted, state=WAITING, token=0, granted_ms=0, until_ms=0)
        self._owner = view.owners[command.session]
        self._prefix = stored_key(r.resource_key(*self._place[:2]))
        self._line = waiting_of(self._prefix)
        self._key = self._line + self.claim.rank
        self._view = view

    def transaction(self, otherwise: list[Json]) -> Json:
        """To be tried where the lock is not free; `otherwise` if not even that will do."""
        compares, operations = self._compares(), [*self._puts(), *self._reads()]
        nested = {"compare": compares, "success": operations, "failure": otherwise}
        return {"request_txn": nested}

    def _compares(self) -> list[Json]:
        keys, command = self._keys, self._command
        apart_ms = CLOCKS_APART_MS if self._view.by_lease else 0
        late = r.rank_of(self._view.now_ms + apart_ms, 0) if apart_ms else self.claim.rank
        living = living_key(command.session)
        return [
            keys.unchanged(EPOCH_KEY, self._view.known.mod(EPOCH_KEY)),
            keys.present(self._prefix),
            keys.unchanged(marker_of(self._prefix), 0),
            keys.unchanged(self._key, 0),
            keys.empty(self._line + late, end_of(self._line)),
            keys.unchanged(living, self._view.known.mod(living)),
        ]

    def _puts(self) -> list[Json]:
        claim, place = self.claim, self._place
        packed = packed_claim(claim, self._owner, 0)
        event = Event(
            0, self._wall_ms, "waiting", place.kind, place.name, place.mode, claim.session, claim.n,
            self._owner.owner, 0, "",
        )  # fmt: skip
        ref = r.claim_ref(claim.session, claim.n)
        puts = [
            self._keys.put(self._claim_key, encode(packed)),
            self._keys.put(self._key, encode([ref, packed])),
        ]
        if self._logs:
            puts.append(self._keys.put(LOG_KEY, encode([packed_event(event, 0)])))
        return puts

    def _wants(self) -> list[Want]:
        return [Want.resource(self._prefix), Want(self._line, f"{self._key}\x00", 2, reverse=True)]

    def _reads(self) -> list[Json]:
        return [
            self._keys.range(want.start, want.stop, want.limit, reverse=want.reverse)
            for want in self._wants()
        ]

    def known(self, responses: list[Json], revision: int) -> Knowledge:
        """What is known once the claim stands in line."""
        known = Knowledge(revision)
        for want, response in zip(self._wants(), responses[-2:], strict=True):
            known.learn(want, self._keys.found(response))
        claim = Kv(self._claim_key, encode(packed_claim(self.claim, self._owner, 0)), revision)
        known.learn(Want(self._claim_key), Found([claim], 1, False))
        return known

    def reply(self, known: Knowledge) -> c.Granted | c.Queued | c.Gone:
        """Who is ahead, as far as the line tells; raises Missing if it does not."""
        view = View(
            known, self._command, self._view.now_ms,
            arrival=0, due_ms=0, by_lease=self._view.by_lease, exact=False,
        )  # fmt: skip
        lines = Lines(view)
        lines.begin(self._view.now_ms, 0)
        return lines.view(self.claim)

    def word_for_holder(self, known: Knowledge) -> tuple[str, int, list[Any]] | None:
        """Who holds alone, and what to tell it; None: it knows, or there is nobody to tell.

        Who is told that somebody waits hands over in the request it leaves with. All who
        come later are in the line that whoever is granted is told of.
        """
        follows = known.between(self._line, end_of(self._line))
        if follows != [self._key] or self._prefix not in known.kvs:
            return None
        stored = known.kvs[self._prefix]
        _, holder = resource_from(self._place.kind, self._place.name, stored.value)
        if holder is None or not holder.is_alone:
            return None
        claim, _ = claim_from(holder.packed, stored.mod)
        line = [self._prefix, stored.value, stored.mod, known.revision, known.kvs[self._key][:3]]
        return claim.session, claim.n, line

    def is_long_held(self, reply: c.Queued, known: Knowledge) -> bool:
        """Whether those who hold may be dead: some were granted long ago, for their TTL."""
        view = View(known, self._command, 0, arrival=0, due_ms=0, exact=False)
        lines = Lines(view)
        holders = lines.holders(lines.resource(*self._place[:2]))
        return any(
            blocker.held and 2 * blocker.for_ms >= view.owners[blocker.session].ttl_ms
            for blocker in reply.ahead
            if any(holder.session == blocker.session for holder in holders)
        )
