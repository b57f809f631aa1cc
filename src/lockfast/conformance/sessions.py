"""Sessions, by commands: how they are opened, renewed and ended."""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.conformance.callers import Caller, expect
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.core import commands as c
from lockfast.core.reasons import UNKNOWN_SESSION

A = c.Place("lock", "a", "exclusive")
B = c.Place("lock", "b", "exclusive")
TTL_MS = 1000
MANY = 80
"""Twice this number of claims is more than a store may remove in one step."""
ENDS: dict[str, c.Command] = {
    "closed": c.Close("many"),
    "expelled": c.Expel("many", "its process died"),
}
REVOKED = c.RevokeSession("many", "admin", "maintenance")


async def session_view(caller: Caller) -> c.SessionView:
    """Return the caller's session, as other clients read it."""
    reply = expect(await caller.send(c.Sessions()), c.SessionsReply)
    (view,) = [view for view in reply.sessions if view.session == caller.id]
    return view


async def ended(caller: Caller) -> c.Ended:
    """Return the `Ended` reply that every command of an ended session receives."""
    answers = [
        await caller.renew(),
        await caller.enter(90, A),
        await caller.leave(91),
        await caller.look(92),
        await caller.open(),
        await caller.send(c.Claims(caller.id)),
    ]
    for answer in answers:
        expect(answer, c.Ended)
    return expect(answers[0], c.Ended)


class SessionStories(Contract):
    @story()
    async def test_the_store_can_do_what_was_declared(self, stage: Stage) -> None:
        store = stage.harness.store()
        try:
            assert store.capabilities == stage.can
        finally:
            store.close()

    @story()
    async def test_only_open_creates_a_session(self, stage: Stage) -> None:
        """The store replies `Ended` to other commands of an unknown session; nothing changes."""
        (caller,) = stage.callers("s")
        for command in (
            c.Enter("s", 1, (A,), queue=stage.can.queue),
            c.Leave("s", 1, (A,)),
            c.Renew("s"),
            c.Look("s", 1),
            c.Claims("s"),
            c.Proclaim("s", 1, "v"),
            c.Adopt("s", 1, "task-1"),
        ):
            expect(await caller.send(command), c.Ended)
        assert not expect(await caller.send(c.Sessions()), c.SessionsReply).sessions
        assert (await caller.inspect("lock", "a")).holder_count == 0

    @story()
    async def test_opening_twice_is_opening_once(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        assert await caller.open() == c.Done(found=False)
        again = caller.opening._replace(owner="somebody else", ttl_ms=1)
        assert await caller.send(again) == c.Done(found=True)
        view = await session_view(caller)
        assert (view.owner, view.ttl_ms) == ("owner of s", 30_000)

    @story()
    async def test_a_session_is_opened_with_its_first_claim(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        granted = await caller.hold(1, A)
        again = await caller.hold(1, A)
        assert again.token == granted.token
        view = await session_view(caller)
        assert (view.owner, view.claims, view.ended) == ("owner of s", 1, "")

    @story()
    async def test_what_is_said_of_a_session_is_kept(self, stage: Stage) -> None:
        (caller,) = stage.callers("s")
        caller.opening = caller.opening._replace(
            owner="host:1:prögram", metadata="'quoted\", 100 %", process="boot:1:2:3"
        )
        await caller.open()
        view = await session_view(caller)
        assert view.owner == "host:1:prögram"
        assert view.metadata == "'quoted\", 100 %"
        assert view.process == ("boot:1:2:3" if stage.harness.keeps_process else "")
        assert 0 < view.left_ms <= view.ttl_ms == 30_000

    @pytest.mark.parametrize("what", ["owner", "metadata"])
    @story()
    async def test_a_text_too_large_opens_nothing(self, stage: Stage, what: str) -> None:
        (caller,) = stage.callers("s")
        texts: dict[str, Any] = {what: "x" * 4097}
        caller.opening = caller.opening._replace(**texts)
        refused = expect(await caller.enter(1, A), c.Refused)
        assert (refused.why, refused.value) == (c.WHY_TOO_LARGE, 4097)
        expect(await caller.look(1), c.Ended)
        assert (await caller.inspect("lock", "a")).holder_count == 0

    @story()
    async def test_keep_alive_keeps_a_session_past_its_ttl(self, stage: Stage) -> None:
        (caller,) = stage.callers("s", ttl_ms=TTL_MS)
        await caller.hold(1, A)
        for _ in range(4):
            await stage.pass_ms(TTL_MS // 3)
            assert (await caller.renewed()).matches
        await caller.holds(1)
        view = await session_view(caller)
        assert view.renewals == 4

    @story()
    async def test_a_session_is_served_or_refused_by_who_did_not_open_it(
        self, stage: Stage
    ) -> None:
        """A lock server that was restarted receives commands of sessions that it did not open.

        A store that binds a session to one process replies `Ended`, so that its client stops. No
        store may pretend to renew it.
        """
        (caller,) = stage.callers("s", ttl_ms=TTL_MS)
        granted = await caller.hold(1, A)
        caller.send = stage.sender()
        for _ in range(4):
            await stage.pass_ms(TTL_MS // 3)
            reply = await caller.renew()
            if isinstance(reply, c.Ended):
                for answer in (await caller.leave(1), await caller.renew()):
                    expect(answer, c.Ended)
                return
            assert expect(reply, c.Renewed).matches
        assert (await caller.holds(1)).token == granted.token
        assert (await caller.hold(1, A)).token == granted.token
        expect(await caller.leave(1), c.Done)
        assert (await caller.inspect("lock", "a")).holder_count == 0
        assert (await caller.hold(2, A)).token > granted.token

    @story()
    async def test_a_session_not_renewed_is_over_with_all_its_claims(self, stage: Stage) -> None:
        dead, next_one = stage.callers("dead", "next", ttl_ms=TTL_MS)
        await dead.hold(1, A)
        await dead.hold(2, B)
        await stage.pass_ms(TTL_MS)
        first = await next_one.hold(1, A)
        second = await next_one.hold(2, B)
        assert dead.account[2] < first.token < second.token
        assert (await ended(dead)).reason

    @story("queue")
    async def test_a_waiter_is_granted_when_the_session_before_it_dies(self, stage: Stage) -> None:
        (dead,) = stage.callers("dead", ttl_ms=TTL_MS)
        (waiter,) = stage.callers("waiter")
        await dead.hold(1, A)
        queued = await waiter.queue(1, A)
        assert 0 < queued.look_ms <= TTL_MS, "the waiter learns when to check again"
        await stage.pass_ms(queued.look_ms)
        ((n, look),) = (await waiter.renewed(1)).looks
        assert n == 1
        assert expect(look, c.Granted).token > dead.account[1]

    @story("queue")
    async def test_a_dead_waiter_is_passed_over(self, stage: Stage) -> None:
        holder, last = stage.callers("holder", "last")
        (dead,) = stage.callers("dead", ttl_ms=TTL_MS)
        await holder.hold(1, A)
        await dead.queue(1, A)
        await last.queue(1, A)
        await stage.pass_ms(TTL_MS)
        await holder.leave(1)
        await last.renewed(1)
        await last.holds(1)

    @story()
    async def test_a_session_that_ended_never_comes_back(self, stage: Stage) -> None:
        """Not even by an `Open` that was sent before the end and arrives after it."""
        (caller,) = stage.callers("s", ttl_ms=TTL_MS)
        await caller.hold(1, A)
        await stage.pass_ms(TTL_MS)
        expect(await caller.open(), c.Ended)
        expect(await caller.enter(2, A), c.Ended)
        assert (await caller.inspect("lock", "a")).holder_count == 0

    @story("queue")
    async def test_close_gives_everything_back(self, stage: Stage) -> None:
        caller, other = stage.callers("s", "other")
        await caller.hold(1, A)
        await other.hold(1, B)
        await caller.queue(2, B)
        await other.queue(2, A)
        assert await caller.send(c.Close("s")) == c.Done(found=True)
        assert await caller.send(c.Close("s")) == c.Done(found=False)
        await other.holds(2)
        assert (await other.inspect("lock", "b")).waiting_count == 0
        await ended(caller)

    @pytest.mark.parametrize("how", ENDS)
    @story("queue")
    async def test_a_session_with_many_claims_ends_at_once_and_leaves_nothing(
        self, stage: Stage, how: str
    ) -> None:
        """The claims may be removed in several steps, but the first reply ends the session."""
        await self._ends_in_portions(stage, ENDS[how])

    @story("queue", "revoke")
    async def test_a_revoked_session_with_many_claims_leaves_nothing(self, stage: Stage) -> None:
        await self._ends_in_portions(stage, REVOKED)

    async def _ends_in_portions(self, stage: Stage, command: c.Command) -> None:
        many, heir = stage.callers("many", "heir")
        await heir.hold(1, A)
        for n in range(1, MANY + 1):
            await many.hold(n, c.Place("lock", f"many/{n:03}", "exclusive"))
            await many.queue(MANY + n, A)
        await heir.queue(2, c.Place("lock", f"many/{MANY:03}", "exclusive"))
        await heir.queue(3, A)
        reply = expect(await heir.send(command), c.Done)
        assert reply.found
        await ended(many)
        await heir.leave(1)
        assert (await session_view(many)).claims <= 2 * MANY
        for _ in range(2 * MANY):
            if not reply.more:
                break
            reply = expect(await heir.send(command), c.Done)
            assert not reply.found
        assert not reply.more, "each step must remove at least one claim"
        assert (await session_view(many)).claims == 0
        await heir.holds(2)
        await heir.holds(3)
        left = expect(await heir.send(c.Listing("lock")), c.ListingReply)
        assert [view.name for view in left.resources] == ["a", f"many/{MANY:03}"]
        assert [view.waiting_count for view in left.resources] == [0, 0]

    @story()
    async def test_a_session_is_expelled_only_if_its_counter_stands_still(
        self, stage: Stage
    ) -> None:
        slow, other = stage.callers("slow", "other")
        await slow.hold(1, A)
        await slow.renewed()
        await slow.renewed()
        assert await other.send(c.Expel("slow", "silent", renewals=1)) == c.Done(found=False)
        await slow.holds(1)
        assert await other.send(c.Expel("slow", "silent", renewals=2)) == c.Done(found=True)
        await other.hold(1, A)
        assert (await ended(slow)).reason == "silent"

    @story()
    async def test_a_dead_process_is_expelled_whatever_its_counter(self, stage: Stage) -> None:
        dead, other = stage.callers("dead", "other")
        await dead.hold(1, A)
        await dead.renewed()
        assert await other.send(c.Expel("dead", "its process died")) == c.Done(found=True)
        assert await other.send(c.Expel("dead", "its process died")) == c.Done(found=False)
        assert await other.send(c.Expel("nobody", "its process died")) == c.Done(found=False)
        await other.hold(1, A)
        assert (await ended(dead)).reason == "its process died"

    @story("revoke")
    async def test_a_revoked_session_is_told_by_whom_and_why(self, stage: Stage) -> None:
        caller, other = stage.callers("s", "other")
        await caller.hold(1, A)
        command = c.RevokeSession("s", "admin", "maintenance")
        assert await other.send(command) == c.Done(found=True)
        assert await other.send(command) == c.Done(found=False)
        told = await ended(caller)
        assert told.by == "admin"
        assert "maintenance" in told.reason
        await other.hold(1, A)

    @story("queue")
    async def test_a_keep_alive_proves_every_claim(self, stage: Stage) -> None:
        """Count and checksum cover held and waiting claims, with their tokens."""
        caller, other = stage.callers("s", "other")
        await other.hold(1, B)
        assert (await caller.renew()) == c.Ended(UNKNOWN_SESSION)
        await caller.hold(1, A)
        await caller.queue(2, B)
        assert (await caller.renewed()).matches
        true_account = dict(caller.account)
        for wrong in (
            {1: true_account[1]},
            {1: true_account[1] + 1, 2: 0},
            {1: true_account[1], 3: 0},
            {**true_account, 3: 0},
            {},
        ):
            caller.account = wrong
            assert not (await caller.renewed()).matches, wrong
        caller.account = true_account
        await other.leave(1)
        assert not (await caller.renewed()).matches, "the waiting claim has been granted"
        await caller.holds(2)
        assert (await caller.renewed()).matches
        await caller.leave(1)
        assert (await caller.renewed()).matches

    @story("queue", "revoke")
    async def test_a_keep_alive_says_how_waiting_claims_stand(self, stage: Stage) -> None:
        caller, other = stage.callers("s", "other")
        await other.hold(1, A)
        await other.hold(2, B)
        await caller.queue(1, A)
        await caller.queue(2, B)
        await caller.queue(3, A)
        await other.leave(1)
        await other.send(c.Revoke("s", 2, "admin", "go away"))
        looks = dict((await caller.renewed(1, 2, 3, 9)).looks)
        expect(looks[1], c.Granted)
        assert expect(looks[2], c.Gone).by == "admin"
        assert [b.session for b in expect(looks[3], c.Queued).ahead] == ["s"]
        expect(looks[9], c.Gone)
