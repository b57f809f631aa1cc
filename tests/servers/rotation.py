"""A password that changes while a client holds a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lockfast
import lockfast.aio

TTL_S = 6.0
RENEWED_S = 60.0


def renewed_after(lease: Any, instant_ms: int) -> bool:
    """Wait until the store has confirmed a lease after an instant of the lease's clock."""
    session = lease._holding.session
    until_s = time.monotonic() + RENEWED_S
    while session.confirmed_at_ms() <= instant_ms and session.alive():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return bool(session.alive())


def holds_through_rotation(
    url: str, passwords: list[str], rotate: Callable[[], None], *, late: bool
) -> None:
    """Hold a lease while the server's password changes; `late`: the client learns it later."""

    def current() -> str:
        return passwords[0]

    with lockfast.connect(url, ttl=TTL_S, password=current, check=True) as client:
        with client.lock("orders/42") as lease:
            token = lease.token
            if not late:
                passwords.pop(0)
            rotate()
            changed_ms = client._core.runtime.now_ms()
            if late:
                # The keeper is refused now, and must not give up before the deadline.
                passwords.pop(0)
            assert renewed_after(lease, changed_ms)
            lease.check()
            client.ping()
            (holder,) = client.inspect("orders/42").holders
            assert holder.token == token
        client.lock("orders/42").acquire(timeout=30).release()


def holds_through_rotation_of_a_file(url: str, file: Path, rotate: Callable[[], None]) -> None:
    """Do the same with the asyncio API and a password file."""

    async def hold() -> None:
        client = await lockfast.aio.connect(f"{url}&password_file={file}", ttl=TTL_S, check=True)
        async with client, client.lock("orders/42") as lease:
            file.write_text("second\n")
            await asyncio.to_thread(rotate)
            changed_ms = client._core.runtime.now_ms()
            assert await asyncio.to_thread(renewed_after, lease, changed_ms)
            await client.ping()
            (holder,) = (await client.inspect("orders/42")).holders
            assert holder.token == lease.token

    file.write_text("first\n")
    asyncio.run(hold())
