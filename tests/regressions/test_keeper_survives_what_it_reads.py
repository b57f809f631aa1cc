"""Rows that others had stored ended a keeper, and with it every lease of its client.

A session row with `process="x"` made the keeper of any claim queued behind it raise. No reply, wake
or listener may end a keeper.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from tests.conformance.cut import SlowWorld
from tests.processes.crew import until

A = c.Place("lock", "a", "exclusive")
TTL_MS = 3_000


@pytest.mark.parametrize("process", ["x", "::::", "1:2:3:4:5", "boot:x:y:z", "\x00"])
def test_an_unreadable_process_is_unknown(tmp_path: Path, process: str) -> None:
    url = f"sqlite://{tmp_path}/locks.db"
    with lockfast.connect(url, ttl=0.5) as client, lockfast.connect(url) as admin:
        send = admin._core.wire.send
        run(send(c.Open("stranger", 600_000, "stranger", process=process), 5_000))
        run(send(c.Enter("stranger", 1, (A,)), 5_000))
        kept = client.lock("kept").acquire()
        taken: list[lockfast.Lease] = []
        waiter = threading.Thread(target=lambda: taken.append(client.lock("a").acquire()))
        waiter.start()
        until(lambda: admin.inspect("a").waiting_count == 1, "it waits")
        (session,) = [info for info in admin.sessions() if info.session == kept.session]

        def renewed() -> bool:
            (now,) = [info for info in admin.sessions() if info.session == kept.session]
            return now.renewals >= session.renewals + 4

        until(renewed, "its keeper goes on")
        kept.check()
        assert client.lock("a").try_acquire() is None
        run(send(c.Leave("stranger", 1), 5_000))
        waiter.join(30)
        taken.pop().release()
        kept.release()


def garbage(what: str) -> Any:
    return {
        "nothing": None,
        "another reply": c.Busy(()),
        "looks of nothing": c.Renewed(True, ((1, None), (99, None))),  # type: ignore[arg-type]
        "looks that are no pairs": c.Renewed(True, (1, 2)),  # type: ignore[arg-type]
        "a list": [1, 2],
    }[what]


@pytest.mark.parametrize(
    "what",
    ["nothing", "another reply", "looks of nothing", "looks that are no pairs", "a list"],
)
def test_a_reply_that_makes_no_sense(what: str) -> None:
    """The lease survives if the next keep-alive is answered."""
    world = SlowWorld()
    left = 1

    async def story() -> None:
        nonlocal left
        client = world.client(ttl=TTL_MS / 1000)
        lease = await client.lock("a").acquire()
        (session,) = client._core.sessions()
        apply = world.store._table.apply

        def confused(command: c.Command) -> Any:
            nonlocal left
            if isinstance(command, c.Renew) and left:
                left -= 1
                return garbage(what)
            return apply(command)

        world.store._table.apply = confused  # type: ignore[method-assign]
        await world.sleep(3 * TTL_MS)
        assert not left
        lease.check()
        assert session.alive()
        await lease.release()
        await client.close()

    world.run(story())


def test_a_listener_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """The keeper renews without it, and logs that once."""
    world = SlowWorld()
    caplog.set_level(logging.WARNING, "lockfast")

    async def story() -> None:
        client = world.client(ttl=TTL_MS / 1000)
        lease = await client.lock("a").acquire()
        (session,) = client._core.sessions()

        async def deaf(timeout_ms: int | None) -> Any:
            raise ValueError("unreadable")

        listen = session.listener.listen
        session.listener.listen = deaf
        session.listener.interrupt()
        await world.sleep(3 * TTL_MS)
        lease.check()
        session.listener.listen = listen
        await lease.release()
        await client.close()

    world.run(story())
    assert caplog.text.count("unreadable") == 1


def test_a_wake_that_makes_no_sense() -> None:
    """Wakes for no claim, for an invalid claim, and of an unknown kind."""
    world = SlowWorld()

    async def story() -> None:
        client = world.client(ttl=TTL_MS / 1000)
        lease = await client.lock("a").acquire()
        (session,) = client._core.sessions()
        for n, what in (
            (-1, "look"),
            (10**30, "granted"),
            (1, "?"),
            ("x", "look"),
            (None, "ended"),
        ):
            session._inbox.append(c.Wake("", session.id, n, what))  # type: ignore[arg-type]
        session._inbox.append(None)
        session.listener.interrupt()
        await world.sleep(3 * TTL_MS)
        lease.check()
        await lease.release()
        await client.close()

    world.run(story())
