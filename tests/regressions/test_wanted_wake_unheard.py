"""A client that retained a lock was never told by another process that it was wanted.

The listener of the SQLite store accepted four kinds of wakes, and WAKE_WANTED was a fifth. The lock
was released only at the next keep-alive, up to a third of the TTL later.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands
from lockfast.core.commands import Wake
from lockfast.runtimes.threads import run
from lockfast.stores.sqlite.wake_listener import SqliteWakeListener, WakeSender

KINDS = sorted(
    value
    for name, value in vars(commands).items()
    # WAKE_FREE is sent by the nodes of a majority, never by a lock table.
    if name.startswith("WAKE_") and name != "WAKE_FREE"
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_wake_is_heard(kind: str) -> None:
    heard: list[Wake] = []
    listener = SqliteWakeListener("session", False, heard.append, lambda inbox: None)
    wake_sender = WakeSender()
    try:
        wake_sender.tell(Wake(listener.inbox, "session", 7, kind))
        run(listener.listen(10_000))
    finally:
        wake_sender.close()
        listener.close()
    assert [(wake.n, wake.what) for wake in heard] == [(7, kind)]
