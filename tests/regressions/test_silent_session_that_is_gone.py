"""A keeper read the first element of an empty list: a silent session may be gone by then."""

from __future__ import annotations

from lockfast.core import commands as c
from tests.conformance.cut import SlowWorld

A = c.Place("lock", "a", "exclusive")


def test_it_is_left_alone() -> None:
    """The counter of the session ahead stands still, and then the store forgets the session."""
    world = SlowWorld()

    async def story() -> None:
        client = world.client(ttl=1)
        table = world.store._table
        table.apply(c.Open("silent", 600_000, "silent"))
        table.apply(c.Enter("silent", 1, (A,)))
        waiter = world.start(client.lock("a").acquire())
        apply = table.apply
        asked = 0

        def without(command: c.Command) -> c.Reply:
            nonlocal asked
            if isinstance(command, c.Sessions):
                asked += 1
                return c.SessionsReply((), False)
            return apply(command)

        table.apply = without  # type: ignore[method-assign]
        await world.sleep(10_000)
        assert asked
        (session,) = client._core.sessions()
        assert session.alive()
        table.apply = apply  # type: ignore[method-assign]
        table.apply(c.Leave("silent", 1))
        lease = await waiter.result()
        await lease.release()
        await client.close()

    world.run(story())
