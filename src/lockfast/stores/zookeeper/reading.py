"""Read-only commands that concern more than one resource."""

from __future__ import annotations

from collections import Counter

from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.reading import Reading
from lockfast.core.rows import Session
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Requests, read_session
from lockfast.stores.zookeeper.loading import load_all
from lockfast.stores.zookeeper.steps import Step, settle
from lockfast.stores.zookeeper.transport import Children, Get, Sync


class Reader:
    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._instant = requests.instant()
        self._paths = requests.context.paths

    async def sessions(self, command: c.Sessions) -> c.Reply:
        _, found = await self._requests.call(Sync(self._paths.root), Children(self._paths.sessions))
        ids = sorted(k.session_of(node) for node in found.children)
        ids = [one for one in ids if one > command.after][: command.limit + 1]
        rows: list[Session] = []
        for session in ids:
            row = await read_session(self._requests, session, self._instant)
            if row is not None:
                rows.append(row)
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
        records = [
            (one, k.record_from(a.data)) for one, a in zip(nodes, answers, strict=True) if a.data
        ]
        return [
            Session(
                one, record.ttl_ms, record.owner, record.metadata, record.inbox, record.process,
                record.opened_ms, 0, ended=record.ended, by=record.by,
            )
            for one, record in records
        ]  # fmt: skip

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
        for name in fitting:
            if len(views) > command.limit:
                break
            step = Step(self._requests, c.Inspect(command.kind, name, 16))
            reply = (await step.run()).reply
            assert isinstance(reply, c.ResourceView)
            if reply.holder_count or reply.waiting_count or reply.closed_ms:
                views.append(reply)
            elif step.is_closed and not self._instant.by_server:
                views.append(reply)  # for comparison: the table shows it until a step opens it
            elif step.is_closed:
                await settle(self._requests, [c.Place(command.kind, name, "")])
        return c.ListingReply(tuple(views[: command.limit]), len(views) > command.limit)
