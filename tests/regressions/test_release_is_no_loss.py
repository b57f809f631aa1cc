"""A lease that was being released was declared lost, and `on_lost` was called.

The store had removed the claim, the caller had not seen the reply yet, and in between the keeper
found that the store has no record of it. This needs a keep-alive or a wake at exactly that moment,
so the releasing thread is delayed here.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lockfast
from lockfast.core.commands import Claims, ClaimsReply, Gone, Leave
from lockfast.core.reasons import NOT_QUEUED
from lockfast.flow.holding import Phase


def test_keeper_looks_while_the_release_is_on_its_way(tmp_path: Path) -> None:
    with lockfast.connect(f"sqlite://{tmp_path}/locks.db") as client:
        lease = client.lock("orders/42").acquire()
        lost: list[lockfast.Lease] = []
        lease.on_lost(lost.append)
        (session,) = client._core.sessions()
        send = client._core.wire.send

        async def answer_late(command: Any, timeout_ms: int) -> Any:
            proof = session.proof()
            reply = await send(command, timeout_ms)
            if isinstance(command, Leave):
                claims = await send(Claims(session.id), timeout_ms)
                assert isinstance(claims, ClaimsReply)
                session.reconcile(proof, claims.claims, session.runtime.now_ms())
                session.apply_view(command.n, Gone(NOT_QUEUED), 0)
            return reply

        client._core.wire.send = answer_late  # type: ignore[method-assign]
        lease.release()

        assert lease._holding.phase is Phase.RELEASED
        assert lease.state is lockfast.LeaseState.RELEASED
        assert lost == []
        assert not any("on-lost" in thread.name for thread in threading.enumerate())
