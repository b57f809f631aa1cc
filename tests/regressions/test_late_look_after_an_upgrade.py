"""A keep-alive reply from before an upgrade, processed after it, removed the new token.

The keeper stored whatever the reply said, even if the lease had a newer token by then. A guard
would have refused the writer, and the next keep-alive found a token that the store did not know:
the lease was declared lost.
"""

from __future__ import annotations

import lockfast
from lockfast.core.commands import Granted


def test_an_old_answer_changes_nothing() -> None:
    with lockfast.connect("memory://late-look") as client:
        lease = client.rwlock("book").update().acquire()
        (session,) = client._core.sessions()
        before = Granted(lease.token, mode="update")
        lease.upgrade()
        token = lease.token

        session.apply_view(lease._holding.n, before, session.runtime.now_ms())

        assert lease.token == token == client.inspect("book").holders[0].token
        assert lease._holding.mode == "exclusive"
        lease.release()
