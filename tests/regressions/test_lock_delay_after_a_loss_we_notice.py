"""`lock_delay` was not applied when the holder noticed its loss before the store did.

The client reported it with the command of a release, and after a release there is no delay. But the
work may continue until its next check.
"""

from __future__ import annotations

import time

import lockfast
from lockfast.core.commands import Renew
from lockfast.errors import StoreUnavailableError


def closed_for(client: lockfast.Client, name: str) -> float:
    give_up = time.monotonic() + 30
    while (info := client.inspect(name)).holder_count:
        assert time.monotonic() < give_up
        time.sleep(0.002)
    return info.closed_for


def test_max_hold_is_over() -> None:
    with lockfast.connect("memory://delay-max-hold") as client:
        lease = client.lock("a", max_hold=0.1, lock_delay=60).acquire()
        assert lease.lost.wait(30)
        assert closed_for(client, "a") > 30


def test_no_keep_alive_was_answered() -> None:
    url = "memory://delay-no-answer"
    with lockfast.connect(url) as other, lockfast.connect(url, ttl=0.3) as client:
        lease = client.lock("a", lock_delay=60).acquire()
        (session,) = client._core.sessions()
        table = session.listener._source  # type: ignore[attr-defined]
        apply = table.apply

        def unreachable(command: object) -> object:
            if isinstance(command, Renew) and command.session == session.id:
                raise StoreUnavailableError("memory", "out of reach")
            return apply(command)

        table.apply = unreachable
        assert lease.lost.wait(30)
        assert closed_for(other, "a") > 30


def test_a_release_needs_no_delay() -> None:
    with lockfast.connect("memory://delay-release") as client:
        with client.lock("a", lock_delay=60):
            pass
        assert client.inspect("a").closed_for == 0
        client.lock("a").acquire(timeout=0).release()
