"""Read-only commands that concern more than one resource."""

from __future__ import annotations

from collections import Counter

from lockfast.core import commands as c
from lockfast.core.reasons import EXPIRED
from lockfast.core.rows import Session
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.steps import Requests, Step, load_all, read_session, settle
from lockfast.stores.zookeeper.transport import Children, Get, Sync
from lockfast.stores.zookeeper.view import Instant


class Reader:
    def __init__(self, requests: Requests, instant: Instant | None) -> None:
        self._requests = requests
        self._instant = instant or requests.context.instant()
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
        views = tuple(
            c.SessionView(
                row.id, row.owner, row.metadata, row.process, row.ttl_ms,
                0 if row.ended else max(0, row.deadline_ms - self._instant.now_ms),
                counts[row.id], row.renewals,
                row.ended or (EXPIRED if row.deadline_ms <= self._instant.now_ms else ""), row.by,
            )
            for row in rows[: command.limit]
        )  # fmt: skip
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
            step = Step(self._requests, c.Inspect(command.kind, name, 16), self._instant)
            reply = (await step.run()).reply
            assert isinstance(reply, c.ResourceView)
            if reply.holder_count or reply.waiting_count or reply.closed_ms:
                views.append(reply)
            elif step.is_closed and not self._instant.by_server:
                views.append(reply)  # for comparison: the table shows it until a step opens it
            elif step.is_closed:
                await settle(self._requests, [c.Place(command.kind, name, "")])
        return c.ListingReply(tuple(views[: command.limit]), len(views) > command.limit)
