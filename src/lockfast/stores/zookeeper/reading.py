"""Read-only commands that concern more than one resource."""

from __future__ import annotations

from collections import Counter
from typing import Final

from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.reading import Reading
from lockfast.core.rows import Session
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests, read_sessions
from lockfast.stores.zookeeper.loading import Loader, load_all
from lockfast.stores.zookeeper.steps import Step, settle
from lockfast.stores.zookeeper.transport import Children, Get, Sync

WAITING_SHOWN: Final = 16
"""How many waiting claims a listing shows of each resource."""


class Reader:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._instant = requests.context.instant()
        self._paths = requests.context.paths

    async def sessions(self, command: c.Sessions) -> c.Reply:
        _, found = await self._requests.call(Sync(self._paths.root), Children(self._paths.sessions))
        ids = sorted(k.session_of(node) for node in found.children)
        ids = [one for one in ids if one > command.after][: command.limit + 1]
        read = await read_sessions(self._requests, ids)
        rows = [row for row in read if row is not None]
        rows += await self._ended(command.after, {row.id for row in rows})
        rows.sort(key=lambda row: row.id)
        ended = {row.id for row in rows if row.ended}
        claims = {of for one in await load_all(self._requests) for of in one.document.entries}
        counts = Counter(session for session, _ in claims if session not in ended)
        reading = Reading(MemoryRows())
        reading.begin(*self._instant[:2])
        for row in rows:
            row.claims = counts[row.id]
        views = tuple(map(reading.session_view, rows[: command.limit]))
        return c.SessionsReply(views, len(rows) > command.limit)

    async def _ended(self, after: str, known: set[str]) -> list[Session]:
        """Return sessions that were ended and whose nodes are gone."""
        (found,) = await self._requests.call(Children(self._paths.tombs))
        nodes = {}
        for node in found.children:
            at_ms, session = k.tomb_of(node)
            is_kept = at_ms + ENDED_KEPT_MS > self._instant.now_ms
            if is_kept and session > after and session not in known:
                nodes[session] = f"{self._paths.tombs}/{node}"
        answers = await self._requests.call(*map(Get, nodes.values())) if nodes else ()
        found_data = [(one, a.data) for one, a in zip(nodes, answers, strict=True) if a.data]
        return [k.record_from(data).row(one, 0) for one, data in found_data]

    async def listing(self, command: c.Listing) -> c.Reply:
        _, found = await self._requests.call(
            Sync(self._paths.root), Children(self._paths.resources)
        )
        names = sorted(k.resource_of(node) for node in found.children)
        fitting = [
            name
            for kind, name in names
            if kind == command.kind and name.startswith(command.prefix) and name > command.after
        ]
        views: list[c.ResourceView] = []
        while fitting and len(views) <= command.limit:
            missing = command.limit + 1 - len(views)
            views += await self._views(command.kind, fitting[:missing])
            del fitting[:missing]
        return c.ListingReply(tuple(views[: command.limit]), len(views) > command.limit)

    async def _views(self, kind: str, names: list[str]) -> list[c.ResourceView]:
        """Return these resources, read together, without those that are not in use any more."""
        loader = Loader(self._requests, c.Inspect(kind, "", WAITING_SHOWN))
        await loader.load([(kind, name) for name in names], fresh=True)
        views: list[c.ResourceView] = []
        for name in names:
            inspect = c.Inspect(kind, name, WAITING_SHOWN)
            step = Step(self._requests, inspect, loader.loaded[kind, name])
            reply = (await step.run()).reply
            assert isinstance(reply, c.ResourceView)
            if reply.holder_count or reply.waiting_count or reply.closed_ms:
                views.append(reply)
            elif step.is_closed and not self._instant.by_server:
                views.append(reply)  # for comparison: the table shows it until a step opens it
            elif step.is_closed:
                await settle(self._requests, [c.Place(kind, name, "")])
        return views
