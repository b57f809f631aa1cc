"""Inspecting, watching and revoking, as an operator does."""

from __future__ import annotations

import pytest

from lockfast.conformance.callers import expect
from lockfast.conformance.faces import Watch
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core.commands import Events, EventsReply, Place
from lockfast.core.reasons import CLOSED
from lockfast.errors import WatchGapError
from lockfast.flow.admin import WatchEvent


async def next_events(watch: Watch, count: int) -> list[WatchEvent]:
    return [await watch.__anext__() for _ in range(count)]


async def begin_log(stage: Stage) -> None:
    """Read the log once: a store may start writing it only after the first read."""
    (caller,) = stage.callers("looker")
    await caller.send(Events(None))


class InspectStories(Contract):
    @story()
    async def test_list_shows_the_locks_in_use(self, stage: Stage) -> None:
        client = stage.client()
        names = ["b/1", "a/2", "a/10", "a"]
        leases = [await client.lock(name).acquire() for name in names]
        assert [info.name for info in await client.list()] == sorted(names)
        assert [info.name for info in await client.list("a/")] == ["a/10", "a/2"]
        assert await client.list("c") == []
        assert await client.list(kind="tree") == []
        for lease in leases:
            await lease.release()
        assert await client.list() == []

    @story()
    async def test_more_locks_than_fit_on_a_page_are_all_listed(self, stage: Stage) -> None:
        client = stage.client()
        names = [f"n{i:04}" for i in range(501)]
        leases = [await client.lock(name).acquire() for name in names]
        assert [info.name for info in await client.list("n")] == names
        await client.close()
        assert all(lease.lost.is_set() for lease in leases)

    @story()
    async def test_sessions_are_shown_with_what_is_said_of_them(self, stage: Stage) -> None:
        one = stage.client(owner="worker", metadata="build 17", ttl=20)
        other = stage.client(owner="looker-on")
        a, b, c = stage.harness.together(*"abc")
        lease = await one.lock(a).acquire()
        stage.keep(await one.lock(b).acquire())
        short = await one.lock(c, ttl=5).acquire()
        sessions = {view.session: view for view in await other.sessions()}
        assert set(sessions) == {lease.session, short.session}, "reading opens no session"
        view = sessions[lease.session]
        assert (view.owner, view.metadata, view.ttl) == ("worker", "build 17", 20.0)
        assert (view.claims, view.ended) == (2, "")
        assert 0 < view.remaining <= 20
        assert (sessions[short.session].ttl, sessions[short.session].claims) == (5.0, 1)
        await one.close()
        assert {view.ended for view in await other.sessions()} == {CLOSED}

    @story("revoke")
    async def test_revoke_says_how_many_lost_it(self, stage: Stage) -> None:
        client = stage.client()
        assert await client.revoke("nobody-has-it", reason="test") == 0
        assert await client.revoke(session="never-was", reason="test") == 0
        lease = await client.lock("a").acquire()
        assert await client.revoke(session=lease.session, reason="test") == 1
        assert await client.revoke(session=lease.session, reason="test") == 0
        assert await lease.lost.wait(30)


class WatchStories(Contract):
    @story("watch", "queue")
    async def test_watch_tells_what_happens_in_order(self, stage: Stage) -> None:
        one, other, looker = stage.client(owner="one"), stage.client(owner="other"), stage.client()
        await begin_log(stage)
        watch = looker.watch("a", after=0)
        watching = stage.start(next_events(watch, 5))
        lease = await one.lock("a/1").acquire()
        await (await one.lock("b").acquire()).release()
        waiting = stage.start(other.lock("a/1").acquire(timeout=30))
        await stage.until_waiting(one, "a/1")
        await lease.release()
        second = await waiting.result()
        await second.release()
        events = await watching.result()
        assert [(event.what, event.owner) for event in events] == [
            ("granted", "one"),
            ("waiting", "other"),
            ("released", "one"),
            ("granted", "other"),
            ("released", "other"),
        ]
        assert [event.token for event in events] == [
            lease.token,
            None,
            lease.token,
            second.token,
            second.token,
        ]
        assert {(event.kind, event.name, event.mode) for event in events} == {
            ("lock", "a/1", "exclusive")
        }
        positions = [event.position for event in events]
        assert positions == sorted(set(positions))
        assert watch.position == positions[-1]
        watch.close()

    @story("watch")
    async def test_watch_goes_on_from_a_position(self, stage: Stage) -> None:
        client = stage.client()
        await begin_log(stage)
        for _ in range(3):
            await (await client.lock("a").acquire()).release()
        events = await next_events(client.watch("a", after=0), 6)
        again = await next_events(client.watch("a", after=events[2].position), 3)
        assert again == events[3:]

    @story("watch")
    async def test_a_watcher_that_waits_is_woken(self, stage: Stage) -> None:
        # The TTL is so long that only a wake can arrive in time.
        one, looker = stage.client(), stage.client(ttl=3600, owner="looker-on")
        await begin_log(stage)
        await (await one.lock("before").acquire()).release()
        (_, last) = await next_events(looker.watch(after=0), 2)
        watch = looker.watch(after=last.position)
        watching = stage.start(next_events(watch, 1))

        async def watched() -> bool:
            return "looker-on" in {view.owner for view in await one.sessions()}

        await stage.until(watched)
        assert not watching.is_done()
        lease = await one.lock("a").acquire()
        (event,) = await watching.result()
        assert (event.what, event.name, event.token) == ("granted", "a", lease.token)
        await lease.release()

    @story("watch")
    async def test_closing_a_watch_ends_it(self, stage: Stage) -> None:
        client = stage.client()
        watch = client.watch()

        async def follow() -> list[WatchEvent]:
            return [event async for event in watch]

        following = stage.start(follow())

        async def started() -> bool:
            return watch.position is not None and bool(await client.sessions())

        await stage.until(started)
        watch.close()
        assert await following.result() == []

    @story("watch")
    async def test_a_position_after_the_end_is_an_error_with_a_snapshot(self, stage: Stage) -> None:
        """Such a position is from a log that the store has lost: its events will not come."""
        client = stage.client()
        await begin_log(stage)
        held = await client.lock("held").acquire()
        (caller,) = stage.callers("another")
        reply = expect(await caller.send(Events(None)), EventsReply)
        watch = client.watch(after=reply.end + (1 << 30))
        with pytest.raises(WatchGapError) as caught:
            await watch.__anext__()
        assert caught.value.resume_at <= reply.end + (1 << 29)
        assert [info.name for info in caught.value.snapshot] == ["held"]
        await held.release()

    @story("watch")
    async def test_a_position_too_long_ago_is_an_error_with_a_snapshot(self, stage: Stage) -> None:
        client = stage.client()
        await begin_log(stage)
        names = stage.harness.many_together()
        busy = stage.harness.session_for("busy", names[0])
        (caller,) = stage.callers(busy, ttl_ms=600_000)  # longer than the loop on any machine
        held = await client.lock("held").acquire()
        places = tuple(Place("lock", name, "exclusive") for name in names)
        await caller.fill_log(stage.harness.log_kept + 400, places)
        watch = client.watch(after=1)
        with pytest.raises(WatchGapError) as caught:
            await watch.__anext__()
        gap = caught.value
        assert gap.position == 1 < gap.oldest <= gap.resume_at
        assert [info.name for info in gap.snapshot] == ["held"]
        await held.release()
        resumed = await next_events(client.watch(after=gap.resume_at), 1)
        assert [(event.what, event.name) for event in resumed] == [("released", "held")]
        goes_on = await next_events(watch, 1)
        assert goes_on == resumed
