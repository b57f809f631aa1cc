"""Bugs planted in the ZooKeeper store: omitted checks, forgotten replies, trusted clocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace as replaced
from typing import Any

from lockfast.core.commands import Event
from lockfast.stores.derived.view import Name
from lockfast.stores.zookeeper import layout, sessions
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Queued
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.loading import Loader
from lockfast.stores.zookeeper.plan import Plan
from lockfast.stores.zookeeper.transport import Operation, Set
from tests.sim.planted.bugs import bug, replace


@bug("zookeeper: the version of a document is not checked", promise="liveness", store="zookeeper")
def _(stack: ExitStack) -> None:
    right = Plan._resource

    def wrong(self: Plan, name: Name, change: Any) -> list[Operation]:
        found = right(self, name, change)
        return [op._replace(version=-1) if isinstance(op, Set) else op for op in found]

    replace(stack, Plan, "_resource", wrong)


@bug("zookeeper: one token for several writes", promise="tokens", store="zookeeper")
def _(stack: ExitStack) -> None:
    def wrong(self: Base, zxid: int) -> int:
        return layout.STRIDE * (zxid & layout.LOW & ~7)

    replace(stack, Base, "native", wrong)


@bug(
    "zookeeper: the session timeout is shorter than the TTL", promise="exclusion", store="zookeeper"
)
def _(stack: ExitStack) -> None:
    def wrong(ttl_ms: int) -> int:
        return ttl_ms // 2

    replace(stack, sessions, "link_timeout_ms", wrong)


@bug("zookeeper: a dead holder is believed to be there", promise="liveness", store="zookeeper")
def _(stack: ExitStack) -> None:
    right = Loader._part

    async def wrong(self: Loader, one: Loaded) -> None:
        entries = dict(one.document.entries)
        await right(self, one)
        one.document.entries.update(entries)
        one.dead.clear()

    replace(stack, Loader, "_part", wrong)


@bug("zookeeper: tokens without the epoch of the zxid", promise="tokens", store="zookeeper")
def _(stack: ExitStack) -> None:
    def wrong(self: Base, zxid: int) -> int:
        return layout.STRIDE * (zxid & layout.LOW)

    replace(stack, Base, "native", wrong)


@bug("zookeeper: a closing is not stored", promise="window", store="zookeeper")
def _(stack: ExitStack) -> None:
    right = Plan._document

    def wrong(self: Plan, one: Loaded) -> Document:
        return replaced(right(self, one), closed_ms=0)

    replace(stack, Plan, "_document", wrong)


@bug(
    "zookeeper: a bucket does not record which claims were moved",
    promise="liveness",
    store="zookeeper",
)
def _(stack: ExitStack) -> None:
    right = layout.packed

    def wrong(document: Document, base: Base, now_ms: int, closed_for_ms: int) -> list[Any]:
        buckets = [bucket._replace(moved=-1) for bucket in document.buckets]
        return right(replaced(document, buckets=buckets), base, now_ms, closed_for_ms)

    replace(stack, layout, "packed", wrong)


@bug(
    "zookeeper: a lock is released without a look at its buckets",
    promise="liveness",
    store="zookeeper",
)
def _(stack: ExitStack) -> None:
    right = Loader._read_buckets

    async def wrong(self: Loader, one: Loaded) -> None:
        await right(self, one)
        one.queued = {bucket.node: [] for bucket in one.document.buckets}

    replace(stack, Loader, "_read_buckets", wrong)


@bug(
    "zookeeper: a full bucket does not list its last claims", promise="liveness", store="zookeeper"
)
def _(stack: ExitStack) -> None:
    right = layout.queued_in

    def wrong(bucket: Bucket, nodes: Iterable[str]) -> list[Queued]:
        return right(bucket, nodes)[:2]

    replace(stack, layout, "queued_in", wrong)


@bug("zookeeper: the end of a claim that vanished is not logged", promise="log", store="zookeeper")
def _(stack: ExitStack) -> None:
    def wrong(self: Plan, name: Name, one: Loaded) -> Iterator[Event]:
        return iter(())

    replace(stack, Plan, "_vanished", wrong)
