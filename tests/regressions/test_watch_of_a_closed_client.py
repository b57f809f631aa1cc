"""Closing a client ends its watches at once, not when a keep-alive would be due (TTL/3)."""

from __future__ import annotations

import threading

import pytest

import lockfast
from tests.processes.crew import until


def test_it_ends() -> None:
    client = lockfast.connect("memory://watch-of-a-closed-client", ttl=3600)
    watch = client.watch()

    def follow() -> None:
        with pytest.raises(lockfast.StoreUnavailableError, match="closed"):
            next(watch)

    watching = threading.Thread(target=follow, daemon=True)
    watching.start()
    until(lambda: bool(client.sessions()), "it watches")
    client.close()
    watching.join(30)
    assert not watching.is_alive()
