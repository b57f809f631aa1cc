"""A revocation missed a claim that was being granted while its session's keys were listed.

etcd lists the keys of a lease without waiting for the transaction that is being applied. A grant
replaces the claim's key, so a list made in between has neither, and the claim counted as gone.
"""

from __future__ import annotations

import pytest

from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.execution import Execution
from tests.etcd.harness import address_of
from tests.servers.etcd import EtcdCluster

PLACE = c.Place("lock", "orders/42", "exclusive")


def test_the_claim_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    with EtcdCluster(1) as node:
        url = node.url("revoked-during-a-grant")
        holder, admin = EtcdStore(address_of(url)), EtcdStore(address_of(url))
        theirs, ours = holder.caller_wire(), admin.caller_wire()
        run(theirs.send(c.Open("holder", 60_000, "h"), 5000))
        run(theirs.send(c.Enter("holder", 1, (PLACE,)), 5000))
        list_keys = Execution.keys_of_lease

        async def list_during_a_grant(self: Execution, lease: int) -> list[str]:
            monkeypatch.undo()
            return [key for key in await list_keys(self, lease) if key[:1] != "n"]

        monkeypatch.setattr(Execution, "keys_of_lease", list_during_a_grant)
        reply = run(ours.send(c.Revoke("holder", 1, "admin", "stuck"), 5000))
        assert reply == c.Done(found=True)
        assert run(theirs.send(c.Look("holder", 1), 5000)) == c.Gone("revoked: stuck", "admin")
        holder.close()
        admin.close()
