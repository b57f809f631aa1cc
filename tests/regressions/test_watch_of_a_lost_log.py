"""A watch stalled when its store had lost its log: the positions of the new one begin again.

Until the new log was as long as the old one, nothing was read, and then only what came after.
The same was true of `/v1/events`, for its streams and for a `Last-Event-ID` of the old log.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import httpx
import pytest

import lockfast
from lockfast import aio
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.sharded.merging import merged_events
from lockfast.stores.sharded.positions import joined
from tests.servers.lockserver import ServerThread
from tests.servers.redis import RedisServer

TTL = 3.0
WAIT_S = 60.0


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def use(client: lockfast.Client, times: int, name: str = "a") -> None:
    for _ in range(times):
        client.lock(name).acquire().release()


@pytest.mark.parametrize("later", [1, 50])
def test_a_watch_reports_the_gap(redis: RedisServer, later: int) -> None:
    """With 50 later pairs, the new log is longer than the old one before the watch reads it."""
    with lockfast.connect(redis.url("lost"), ttl=TTL) as watcher:
        watch = watcher.watch()
        told: list[object] = []
        heard = threading.Event()

        def follow() -> None:
            try:
                for event in watch:
                    told.append(event.what)
                    heard.set()
            except lockfast.WatchGapError as gap:
                told.append(gap)

        thread = threading.Thread(target=follow)
        thread.start()
        with lockfast.connect(redis.url("lost"), ttl=TTL) as client:
            while not heard.is_set():  # until the log is followed
                use(client, 1)
        position = watch.position
        redis.run("FLUSHALL")
        with lockfast.connect(redis.url("lost"), ttl=TTL) as client:
            run(client._core.ask(c.Events(None), c.EventsReply))  # enables the new log
            held = client.lock("held").acquire()
            use(client, later)
            thread.join(WAIT_S)
            gap = told[-1]
            assert isinstance(gap, lockfast.WatchGapError)
            assert gap.position >= (position or 0)
            # The watch may notice the gap before `held` is acquired, or while the other lock is.
            assert {info.name for info in gap.snapshot} <= {"held", "a"}
            held.release()
        watch.close()


def test_an_asyncio_watch_reports_the_gap(redis: RedisServer) -> None:
    async def scenario() -> None:
        async with aio.connect(redis.url("lost"), ttl=TTL) as client:
            watch = client.watch()
            first = asyncio.ensure_future(anext(watch))
            while not first.done():  # until the log is followed
                await (await client.lock("a").acquire()).release()
            redis.run("FLUSHALL")
            with pytest.raises(lockfast.WatchGapError):
                async with asyncio.timeout(WAIT_S):
                    async for event in watch:
                        assert event.name == "a"
            held = await client.lock("after").acquire()
            async with asyncio.timeout(WAIT_S):
                assert (await anext(watch)).name == "after"
            await held.release()

    asyncio.run(scenario())


def events_of(lines: Iterator[str]) -> Iterator[dict[str, object]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_streams_of_the_server_report_the_gap(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockfast.server.event_log.TTL_MS", int(TTL * 1000))
    accept = {"Accept": "text/event-stream"}
    with ServerThread(redis.url("lost")) as server:
        url = f"{server.base}/v1/events"
        with httpx.stream("GET", url, headers=accept, timeout=WAIT_S) as response:
            events = events_of(response.iter_lines())
            told: list[object] = []
            heard = threading.Event()

            def follow() -> None:
                for event in events:
                    told.append(event["what"])
                    heard.set()

            thread = threading.Thread(target=follow)
            thread.start()
            with lockfast.connect(redis.url("lost"), ttl=TTL) as client:
                while not heard.is_set():  # until the log is followed
                    use(client, 1)
            redis.run("FLUSHALL")
            thread.join(WAIT_S)
            assert told[-1] == "gap", "and the stream ends"
        old = {**accept, "Last-Event-ID": "1000000"}
        with httpx.stream("GET", url, headers=old, timeout=WAIT_S) as response:
            assert next(events_of(response.iter_lines()))["what"] == "gap"


def test_a_shard_that_lost_its_log_is_a_gap() -> None:
    """Even if the joined position of all shards has grown."""
    after = [500, 7]
    replies = [c.EventsReply((), 3, 1, False), c.EventsReply((), 9, 1, False)]
    merged = merged_events(replies, after, 100)
    assert merged.events == ()
    assert merged.end == joined([3, 9])
    assert joined(after) < merged.oldest - 1, "a gap"
