"""The conformance suite's way to let time pass on etcd's clock: until its leases are over."""

from __future__ import annotations

import json
from typing import Any

from lockfast.conformance.drivers import PATIENCE_S
from lockfast.conformance.harness import Harness
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.journal import LOG_KEPT
from tests.servers.etcd import EtcdCluster

LOOK_EVERY_S = 0.02
SHORTEST_MS = 750
"""No lease ends within less."""


def spoken(body: Any) -> Any:
    """What a request says, as it is sent."""
    return json.loads(body) if isinstance(body, bytes) else body


def writes(body: Any) -> bool:
    """Whether a transaction writes, if it is as believed."""
    said = spoken(body)
    return bool(said.get("compare") and said.get("success"))


class EtcdHarness(Harness):
    """A cluster in one face, in a namespace that nobody has used before."""

    def __init__(self, cluster: EtcdCluster, face: str) -> None:
        super().__init__(cluster.url(), face, EtcdStore.capabilities, log_kept=LOG_KEPT)
        self._cluster = cluster

    async def pass_ms(self, span_ms: int) -> None:
        """etcd counts in whole seconds and ends a lease a little later than it is over."""
        if span_ms < SHORTEST_MS:
            await super().pass_ms(span_ms)
            return
        before = self._leases()
        await super().pass_ms(span_ms)
        give_up_s = self.driver.now_s() + PATIENCE_S
        while any(self._is_overdue(lease, span_ms) for lease in before):
            assert self.driver.now_s() < give_up_s, "a lease does not end"
            await self.driver.pause(LOOK_EVERY_S)

    def _leases(self) -> list[str]:
        found: Any = self._cluster.call("/v3/lease/leases", {})
        return [lease["ID"] for lease in found.get("leases", ())]

    def _is_overdue(self, lease: str, span_ms: int) -> bool:
        """Whether a lease that was granted for about this span is still there."""
        found: Any = self._cluster.call("/v3/lease/timetolive", {"ID": lease})
        granted_s, left_s = int(found.get("grantedTTL", 0)), int(found.get("TTL", 0))
        return 0 < granted_s * SHORTEST_MS <= span_ms and left_s == 0
