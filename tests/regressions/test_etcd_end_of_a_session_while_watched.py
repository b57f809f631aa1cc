"""What ends with a session is in the log, also for a watcher that read it in the middle of the end.

A session is ended in two steps: its tombstone is written, and then its lease is revoked. The events
of its claims are derived from the second step and explained by the first. A watcher whose position
lay between them found no explanation, and took the claims for none that had ended: it believed in a
leader that was gone.
"""

from __future__ import annotations

from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.sessions import Sessions
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

PLACE = c.Place("election", "scheduler", "exclusive")


def test_the_end_of_its_claims_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with EtcdCluster(1) as node:
        leader, watcher = (EtcdStore(address_of(node.url("ended"))) for _ in range(2))
        leading, watching = leader.caller_wire(), watcher.caller_wire()
        positions: list[int] = []
        bury = Sessions._bury

        async def read_and_bury(self: Sessions, *rest: Any) -> list[c.Place]:
            positions.append(await _end_of_log(watching))
            return await bury(self, *rest)

        run(_end_of_log(watching))
        run(leading.send(c.Open("leader", 60_000, "l"), 5000))
        assert isinstance(run(leading.send(c.Enter("leader", 1, (PLACE,)), 5000)), c.Granted)
        monkeypatch.setattr(Sessions, "_bury", read_and_bury)
        run(leading.send(c.RevokeSession("leader", "admin", "maintenance"), 5000))
        reply = run(watching.send(c.Events(positions[0]), 5000))
        assert isinstance(reply, c.EventsReply)
        assert [(event.what, event.name) for event in reply.events] == [("revoked", "scheduler")]
        for each in (leader, watcher):
            each.close()


async def _end_of_log(wire: Any) -> int:
    reply = await wire.send(c.Events(None), 5000)
    assert isinstance(reply, c.EventsReply)
    return reply.end
