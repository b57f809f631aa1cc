"""Reading, by commands: listings, pages, and the log with its positions."""

from __future__ import annotations

from lockfast.conformance.callers import expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c

NAMES = ("a", "a/1", "a/2", "ab", "b", "b\U0010ffff", "é", "\U0010ffff")


def lock(name: str) -> c.Place:
    return c.Place("lock", name, "exclusive")


class ReadingStories(Contract):
    @story()
    async def test_a_lock_nobody_uses_is_empty_and_not_listed(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        await caller.hold(1, lock("a"))
        await caller.leave(1)
        view = await caller.inspect("lock", "a")
        assert (view.kind, view.name) == ("lock", "a")
        assert (view.holders, view.waiting, view.holder_count, view.waiting_count) == ((), (), 0, 0)
        assert await caller.send(c.Listing("lock")) == c.ListingReply((), False)

    @story("queue")
    async def test_inspect_shows_holders_and_the_head_of_the_line(self, stage: Stage) -> None:
        holder, crowd = stage.callers("holder", "crowd")
        await holder.hold(1, lock("a"))
        for n in range(1, 6):
            await crowd.queue(n, lock("a"), actor=f"task-{n}")
        view = expect(await holder.send(c.Inspect("lock", "a", 3)), c.ResourceView)
        assert (view.holder_count, view.waiting_count) == (1, 5)
        assert [claim.session for claim in view.holders] == ["holder"]
        assert [(claim.n, claim.actor) for claim in view.waiting] == [
            (1, "task-1"),
            (2, "task-2"),
            (3, "task-3"),
        ]
        assert {claim.state for claim in view.waiting} == {"waiting"}
        assert {claim.token for claim in view.waiting} == {0}

    @story()
    async def test_locks_are_listed_by_prefix_in_order_of_name(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        for n, name in enumerate(reversed(NAMES), 1):
            await caller.hold(n, lock(name))

        async def listed(prefix: str) -> list[str]:
            reply = expect(await caller.send(c.Listing("lock", prefix)), c.ListingReply)
            assert not reply.more
            return [view.name for view in reply.resources]

        for prefix in ("", *NAMES, "a/", "zz", "A", "%"):
            assert await listed(prefix) == sorted(n for n in NAMES if n.startswith(prefix))
        assert await caller.send(c.Listing("tree")) == c.ListingReply((), False)

    @story()
    async def test_pages_of_a_listing_miss_nothing(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        for n, name in enumerate(NAMES, 1):
            await caller.hold(n, lock(name))
        found: list[str] = []
        more = True
        while more:
            after = found[-1] if found else ""
            reply = expect(await caller.send(c.Listing("lock", "", after, 3)), c.ListingReply)
            found += [view.name for view in reply.resources]
            more = reply.more
        assert found == sorted(NAMES)

    @story()
    async def test_pages_of_sessions_miss_nothing(self, stage: Stage) -> None:
        callers = stage.callers(*(f"s{i}" for i in range(7)))
        for caller in callers:
            await caller.open()
        found: list[str] = []
        more = True
        while more:
            after = found[-1] if found else ""
            reply = expect(await callers[0].send(c.Sessions(after, 3)), c.SessionsReply)
            found += [view.session for view in reply.sessions]
            more = reply.more
        assert found == [caller.id for caller in callers]

    @story("queue")
    async def test_claims_of_a_session_are_its_own(self, stage: Stage) -> None:
        one, other = stage.callers("one", "one-more")
        await one.hold(1, lock("a"))
        await other.queue(1, lock("a"))
        await one.hold(10, lock("b"))
        assert [(v.n, v.state) for v in await one.claims()] == [(1, "holding"), (10, "holding")]
        assert [(v.n, v.state) for v in await other.claims()] == [(1, "waiting")]


class LogStories(Contract):
    """Read the log once: a store may start writing it only after the first read."""

    @story("watch", "queue", "revoke")
    async def test_the_log_tells_everything_in_order(self, stage: Stage) -> None:
        one, other = stage.callers("one", "other")
        await one.send(c.Events(None))
        granted = await one.hold(1, lock("a"))
        await other.queue(1, lock("a"))
        await other.queue(2, lock("a"))
        await one.leave(1)
        handed_over = await other.holds(1)
        await one.send(c.Revoke("other", 1, "admin", "enough"))
        await other.leave(2)
        reply = expect(await one.send(c.Events(0)), c.EventsReply)
        told = [(event.what, event.session, event.n) for event in reply.events]
        assert told == [
            ("granted", "one", 1),
            ("waiting", "other", 1),
            ("waiting", "other", 2),
            ("released", "one", 1),
            ("granted", "other", 1),
            ("revoked", "other", 1),
            ("granted", "other", 2),
            ("released", "other", 2),
        ]
        positions = [event.position for event in reply.events]
        assert positions == sorted(set(positions)), "positions increase, not necessarily by one"
        assert reply.end == positions[-1]
        first, revoked = reply.events[0], reply.events[5]
        assert (first.kind, first.name, first.mode) == ("lock", "a", "exclusive")
        assert (first.owner, first.token) == ("owner of one", granted.token)
        assert revoked.token == handed_over.token
        assert "enough" in revoked.detail

    @story("watch")
    async def test_reading_goes_on_from_a_position(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        for n in range(1, 4):
            await caller.hold(n, lock(f"n{n}"))
        end = expect(await caller.send(c.Events(None)), c.EventsReply)
        assert (end.events, end.more) == ((), False)
        for n in range(4, 8):
            await caller.hold(n, lock(f"n{n}"))
        part = expect(await caller.send(c.Events(end.end, limit=3)), c.EventsReply)
        assert [event.n for event in part.events] == [4, 5, 6]
        assert part.more
        rest = expect(await caller.send(c.Events(part.events[-1].position)), c.EventsReply)
        assert [event.n for event in rest.events] == [7]
        assert not rest.more
        nothing = expect(await caller.send(c.Events(rest.end)), c.EventsReply)
        assert (nothing.events, nothing.end) == ((), rest.end)

    @story("watch")
    async def test_the_log_is_bounded_and_says_where_it_begins(self, stage: Stage) -> None:
        kept, names = stage.harness.log_kept, stage.harness.many_together()
        (caller,) = stage.callers(stage.harness.session_for("s", names[0]), ttl_ms=600_000)
        before = expect(await caller.send(c.Events(None)), c.EventsReply).end
        await caller.fill_log(kept + 400, tuple(map(lock, names)))
        reply = expect(await caller.send(c.Events(0, limit=1)), c.EventsReply)
        assert reply.end - before >= kept + 400
        assert reply.oldest > before + 1, "the oldest entries are dropped"
        assert reply.end - reply.oldest + 1 >= kept, "the store keeps at least log_kept entries"
        assert reply.events[0].position == reply.oldest
