"""Leases, through clients: held, renewed, lost, released."""

from __future__ import annotations

import pytest

from lockfast.conformance.faces import Client, Lease
from lockfast.conformance.harness import Contract, Stage, story
from lockfast.errors import LeaseLostError, StoreUnavailableError

SHORT_S = 0.5
KEPT_S = 3.0
"""Long enough for renewals to be in time on a busy machine."""
"""A TTL or max_hold that a test waits for."""


async def renewals(client: Client, session: str) -> int:
    (view,) = [view for view in await client.sessions() if view.session == session]
    return view.renewals


class LeaseStories(Contract):
    @story()
    async def test_a_lease_says_what_it_is(self, stage: Stage) -> None:
        client = stage.client(owner="worker-7", ttl=20)
        lease = await client.lock("orders/42").acquire()
        assert (lease.name, lease.owner) == ("orders/42", "worker-7")
        assert lease.state == "held"
        assert 0 < lease.remaining <= 20
        assert not lease.lost.is_set()
        lease.check()
        (holder,) = (await client.inspect("orders/42")).holders
        assert (holder.session, holder.token) == (lease.session, lease.token)
        assert holder.owner == "worker-7"
        await lease.release()
        assert lease.state == "released"
        assert lease.remaining == 0.0
        with pytest.raises(LeaseLostError):
            lease.check()

    @story()
    async def test_releasing_twice_is_harmless(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        first = await one.lock("a").acquire()
        await first.release()
        second = await other.lock("a").acquire(timeout=0)
        await first.release()
        assert second.state == "held"
        assert (await one.inspect("a")).holders[0].token == second.token
        await second.release()

    @story()
    async def test_a_lease_lives_past_its_ttl(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a", ttl=KEPT_S).acquire()
        before = lease.deadline

        async def kept() -> bool:
            return lease.deadline >= before + KEPT_S

        await stage.until(kept)
        assert lease.state == "held"
        assert await renewals(one, lease.session) >= 3
        assert await other.lock("a").try_acquire() is None
        await lease.release()

    @story("revoke")
    async def test_a_revoked_lease_is_lost_and_says_why(self, stage: Stage) -> None:
        one, admin = stage.client(), stage.client(owner="admin")
        lease = await one.lock("a").acquire()
        waiting = stage.start(lease.lost.wait(30))
        assert await admin.revoke("a", reason="stuck since noon") == 1
        assert await waiting.result() is True
        assert lease.lost.is_set()
        assert lease.state == "lost"
        assert lease.remaining == 0.0
        for look in (lease.check, None):
            with pytest.raises(LeaseLostError, match="stuck since noon") as caught:
                if look is not None:
                    look()
                else:
                    await lease.release()
            assert caught.value.name == "a"
            assert caught.value.token == lease.token
            assert caught.value.by == "admin"
        assert await admin.revoke("a", reason="again") == 0

    @story("revoke")
    async def test_a_revoked_session_loses_every_lease_and_the_next_gets_another(
        self, stage: Stage
    ) -> None:
        one, admin = stage.client(), stage.client(owner="admin")
        names = stage.harness.together("a", "b")
        leases = [await one.lock(name).acquire() for name in names]
        assert await admin.revoke(session=leases[0].session, reason="maintenance") == 1
        for lease in leases:
            assert await lease.lost.wait(30)
            with pytest.raises(LeaseLostError, match="maintenance"):
                lease.check()
        again = await one.lock(names[0]).acquire(timeout=30)
        assert again.session != leases[0].session
        assert again.token > leases[1].token
        await again.release()

    @story("revoke")
    async def test_callbacks_hear_of_a_loss_and_not_of_a_release(self, stage: Stage) -> None:
        one, admin = stage.clients(2)
        heard: list[str] = []

        def note(lease: Lease) -> None:
            heard.append(lease.name)

        kept = await one.lock("kept").acquire()
        kept.on_lost(note)
        await kept.release()
        lease = await one.lock("a").acquire()
        lease.on_lost(note)
        lease.on_lost(note)
        await admin.revoke("a", reason="enough")

        async def both() -> bool:
            return len(heard) == 2

        await stage.until(both)
        lease.on_lost(note)

        async def late() -> bool:
            return len(heard) == 3

        await stage.until(late)
        assert set(heard) == {"a"}

    @story()
    async def test_waiting_for_a_loss_ends_with_the_release_or_its_timeout(
        self, stage: Stage
    ) -> None:
        client = stage.client()
        lease = await client.lock("a").acquire()
        assert await lease.lost.wait(0) is False
        assert await lease.lost.wait(0.01) is False
        waiting = stage.start(lease.lost.wait())
        await lease.release()
        assert await waiting.result() is False

    @story()
    async def test_max_hold_ends_a_lease_whose_holder_lives(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        lease = await one.lock("a", max_hold=SHORT_S).acquire()
        kept = await one.lock("b").acquire()
        assert lease.remaining <= SHORT_S
        assert await lease.lost.wait(30)
        with pytest.raises(LeaseLostError, match="max_hold"):
            lease.check()
        later = await other.lock("a").acquire(timeout=30)
        assert later.token > lease.token
        assert kept.state == "held"
        await later.release()
        await kept.release()

    @story()
    async def test_leaving_the_block_of_a_lost_lease_raises(self, stage: Stage) -> None:
        client = stage.client()
        with pytest.raises(LeaseLostError, match="max_hold"):
            async with client.lock("a", max_hold=0.1) as lease:
                await lease.lost.wait(30)
        async with client.lock("a"):
            pass

    @story()
    async def test_the_error_of_the_body_wins_over_the_loss(self, stage: Stage) -> None:
        client = stage.client()
        with pytest.raises(ZeroDivisionError) as caught:
            async with client.lock("a", max_hold=0.1) as lease:
                try:
                    await lease.lost.wait(30)
                finally:
                    raise ZeroDivisionError
        chain: list[BaseException] = []
        error: BaseException | None = caught.value
        while error is not None:
            chain.append(error)
            error = error.__cause__ or error.__context__
        assert any(isinstance(link, LeaseLostError) for link in chain)

    @story()
    async def test_a_closed_client_says_so_and_closing_twice_is_harmless(
        self, stage: Stage
    ) -> None:
        client = stage.client()
        await (await client.lock("a").acquire()).release()
        await client.close()
        await client.close()
        with pytest.raises(StoreUnavailableError, match="closed"):
            await client.lock("a").acquire()
