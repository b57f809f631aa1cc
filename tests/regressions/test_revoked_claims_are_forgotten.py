"""A claim that was revoked, or chosen as a deadlock victim, stayed in the store.

The store keeps the reason for the client to read. The client read it and never confirmed that: one
row for each, as long as the session lived.
"""

from __future__ import annotations

import time

import pytest

import lockfast
from lockfast.core.commands import Claims, ClaimsReply
from lockfast.runtimes.threads import run


def test_a_revoked_lease_leaves_nothing_in_the_store() -> None:
    with lockfast.connect("memory://revoked-claims") as client:
        lease = client.lock("a").acquire()
        client.revoke("a", reason="enough")
        assert lease.lost.wait(30)
        give_up = time.monotonic() + 30
        while run(client._core.request(Claims(lease.session))) != ClaimsReply(()):
            assert time.monotonic() < give_up
            time.sleep(0.002)
        with pytest.raises(lockfast.LeaseLostError, match="enough"):
            lease.check()
