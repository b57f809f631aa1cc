"""Recipes, through clients: blocks, decorators, names, TTLs."""

from __future__ import annotations

import pytest

from lockfast.conformance.harness import Contract, Stage, story
from lockfast.errors import InvalidNameError, LimitError


class RecipeStories(Contract):
    @story()
    async def test_the_body_runs_with_the_lock_and_never_without(self, stage: Stage) -> None:
        one, other = stage.clients(2)
        async with one.lock("a") as lease:
            assert lease.state == "held"
            assert await other.lock("a").try_acquire() is None
        assert lease.state == "released"
        with pytest.raises(ZeroDivisionError):
            async with one.lock("a") as failed:
                raise ZeroDivisionError
        assert failed.state == "released"
        assert (await one.inspect("a")).holder_count == 0

    @story()
    async def test_a_lease_is_a_block_too(self, stage: Stage) -> None:
        client = stage.client()
        lease = await client.lock("a").acquire()
        async with lease as same:
            assert same.token == lease.token
        assert lease.state == "released"

    @story()
    async def test_a_decorated_function_runs_under_the_lock(self, stage: Stage) -> None:
        client = stage.client()

        @client.lock("report")
        async def build(day: str, *, dry: bool = False) -> tuple[str, bool, int]:
            return day, dry, (await client.inspect("report")).holder_count

        assert await build("monday", dry=True) == ("monday", True, 1)
        assert (await client.inspect("report")).holder_count == 0

    @story()
    async def test_fields_of_a_decorated_name_are_the_arguments(self, stage: Stage) -> None:
        client = stage.client()

        @client.lock("report:{day}/{part}")
        async def build(day: str, part: int = 7) -> list[str]:
            return [info.name for info in await client.list()]

        assert await build("monday") == ["report:monday/7"]
        assert await build(part=8, day="a/b") == ["report:a%2Fb/8"]
        assert await build("100%") == ["report:100%25/7"]
        with pytest.raises(InvalidNameError):
            await build("x" * 600)
        with pytest.raises(TypeError):
            await build()

    @story()
    async def test_an_error_in_a_decorated_function_releases_the_lock(self, stage: Stage) -> None:
        client = stage.client()

        @client.lock("a")
        async def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert (await client.inspect("a")).holder_count == 0

    @story()
    async def test_braces_are_literal_in_a_plain_name(self, stage: Stage) -> None:
        client = stage.client()
        async with client.lock("a{b}"):
            assert [info.name for info in await client.list()] == ["a{b}"]

    @story()
    async def test_locks_of_one_ttl_share_a_session_and_there_are_at_most_eight(
        self, stage: Stage
    ) -> None:
        client = stage.client()
        together = stage.harness.together
        names = together(*(f"n{i}" for i in range(8)), *(f"near{i}" for i in range(8)))
        more, less = together("longer", "shorter")
        sessions = set()
        for i in range(8):
            lease = stage.keep(await client.lock(names[i], ttl=10 + i).acquire())
            sessions.add(lease.session)
            near = stage.keep(await client.lock(names[8 + i], ttl=10 + i + 0.4).acquire())
            assert near.session == lease.session, (
                "similar TTLs are rounded down and share a session"
            )
        assert len(sessions) == 8
        longer = stage.keep(await client.lock(more, ttl=60).acquire())
        assert longer.session in sessions
        with pytest.raises(LimitError):
            await client.lock(less, ttl=5).acquire()
