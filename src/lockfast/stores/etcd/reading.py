"""Commands that read more than queues: a session's claims, sessions, resources in use."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lockfast.core import commands as c
from lockfast.core.commands import Reply
from lockfast.core.reading import BEHIND_ALL_NAMES, Reading
from lockfast.core.rows import Claim, resource_key
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.layout import Base
from lockfast.stores.etcd.requests import Found, Known, Range
from lockfast.stores.etcd.view import Missing, View, others_of, queue_of

PAGE: Final = 200
WAITING_SHOWN: Final = 16


class Reader:
    """Execute one read-only command."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._own = execution.own
        self._instant = execution.instant

    async def _read(self, *ranges: Range) -> Known:
        """Read ranges, and the base to check that the schema is known."""
        known = await self._execution.read([Range(k.EPOCH_KEY), *ranges])
        k.base_from(self._execution.keys.label, known.get(k.EPOCH_KEY))
        return known

    def _view(self, known: Known) -> View:
        return View(known, self._own, Base(0), self._instant, exact=True)

    def _reading(self, view: View) -> Reading:
        reading = Reading(view)
        reading.begin(*self._instant[:2])
        return reading

    async def claims(self, command: c.Claims) -> Reply:
        session = command.session
        names = [k.session_key(session), k.alive_key(session), k.ended_key(session)]
        known = await self._read(*map(Range, names))
        over = self._reading(self._view(known)).ended_reply(session)
        if over is not None:
            return over
        stored = await self._execution.stored_claims(session, known.kvs[names[0]].lease)
        words = Range(k.words_prefix(session), k.end_of(k.words_prefix(session)))
        known = await self._read(*map(Range, names), words)
        claims: dict[int, Claim] = {}
        for kv in stored:
            claim, _ = k.claim_from(k.parse_place(kv.key), kv)
            claims[claim.n] = claim
        for kv in known.found[words].kvs:
            n = int(kv.key.rsplit("\x1f", 1)[1], 16)
            revoked = k.revoked_from(session, n, kv)
            if revoked is not None:
                claims[n] = revoked
        reading = self._reading(self._view(known))
        return c.ClaimsReply(tuple(reading.claim_view(claims[n]) for n in sorted(claims)))

    async def sessions(self, command: c.Sessions) -> Reply:
        start = f"{command.after}\x00" if command.after else ""
        limit = command.limit + 1
        ranges = [Range(f"{family}\x1f{start}", f"{family} ", limit) for family in "kop"]
        known = await self._read(*ranges)
        tombs, living, _ = ({kv.key[2:]: kv for kv in known.found[one].kvs} for one in ranges)
        reading = self._reading(self._view(known))
        views: list[c.SessionView] = []
        names = sorted({*tombs, *living})[:limit]
        for session in names[: command.limit]:
            if session not in living:
                known.found[Range(k.session_key(session))] = Found([], 0)
            elif not known.has(k.alive_key(session)):
                alive = Range(k.alive_key(session))
                known.found[alive] = (await self._read(alive)).found[alive]
            row = reading.session(session)
            if row is not None:
                kv = living.get(session)
                row.claims = len(await self._execution.claims_listed(kv.lease)) if kv else 0
                views.append(reading.session_view(row))
        return c.SessionsReply(tuple(views), len(names) > command.limit)

    async def listing(self, command: c.Listing) -> Reply:
        kind = command.kind
        family = f"n\x1f{kind}\x1f"
        start = family + max(command.prefix, f"{command.after}\x20" if command.after else "")
        stop = family + command.prefix + BEHIND_ALL_NAMES
        views: list[c.ResourceView] = []
        while start < stop and len(views) <= command.limit:
            known = await self._read(Range(start, stop, PAGE))
            kvs = known.found[Range(start, stop, PAGE)].kvs
            names = list(dict.fromkeys(k.parse_place(kv.key).name for kv in kvs))
            part = names[: command.limit + 1 - len(views)]
            views += await self._inspect(kind, part)
            if len(kvs) < PAGE and part == names:
                break
            start = k.end_of(k.resource_prefix(kind, part[-1]))
        return c.ListingReply(tuple(views[: command.limit]), len(views) > command.limit)

    async def _inspect(self, kind: str, names: list[str]) -> list[c.ResourceView]:
        """Read several resources at one revision, in as few requests as possible."""
        prefixes = [k.resource_prefix(kind, name) for name in names]
        windows = dict.fromkeys(prefixes, WAITING_SHOWN + 32)
        wanted = {others_of(prefix, "") for prefix in prefixes}
        wanted |= {queue_of(prefix, "", windows[prefix]) for prefix in prefixes}
        while True:
            known = await self._read(*sorted(wanted))
            view = self._view(known)
            view.windows = windows
            reading = self._reading(view)
            found: list[c.ResourceView] = []
            for name in names:
                with suppress(Missing):
                    if view.get(resource_key(kind, name)) is not None:
                        found.append(reading.resource_view(kind, name, WAITING_SHOWN))
            if not view.wants:
                return found
            wanted |= view.wants
