"""The conformance suite's harness for etcd: it waits until etcd's leases have expired."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from typing import Any

from lockfast.conformance.drivers import PATIENCE_S
from lockfast.conformance.harness import Harness
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import Address, parse
from lockfast.stores.etcd.journal import LOG_KEPT
from lockfast.stores.registry import parse_url
from tests.servers.etcd import EtcdCluster

LOOK_EVERY_S = 0.02
SHORTEST_MS = 750
"""No session's lease expires in less."""


def address_of(url: str) -> Address:
    return parse(parse_url(url))


class EtcdHarness(Harness):
    """A cluster with one API, in a new namespace."""

    def __init__(self, cluster: EtcdCluster, face: str) -> None:
        super().__init__(cluster.url(), face, EtcdStore.capabilities, log_kept=LOG_KEPT)
        self._cluster = cluster

    def many_together(self) -> tuple[str, ...]:
        """Return one name: the log keeps a number of transactions, not of their entries."""
        return super().many_together()[:1]

    async def pass_ms(self, span_ms: int) -> None:
        """Wait for a time, and for etcd, which counts whole seconds and expires leases late."""
        before = self._leases() if span_ms >= SHORTEST_MS else []
        await super().pass_ms(span_ms)
        give_up_s = self.driver.now_s() + PATIENCE_S
        while any(self._is_overdue(lease, span_ms) for lease in before) or self._has_overdue():
            assert self.driver.now_s() < give_up_s, "a lease does not end"
            await self.driver.pause(LOOK_EVERY_S)

    def _has_overdue(self) -> bool:
        """Return whether a lock delay or a bound has expired but its key still exists."""
        root = address_of(self.url).root.encode()
        start, stop = b64encode(root).decode(), b64encode(root + b"\xff").decode()
        found: Any = self._cluster.call("/v3/kv/range", {"key": start, "range_end": stop})
        for kv in found.get("kvs", ()):
            key = b64decode(kv["key"])[len(root) :]
            is_span = key.startswith(b"u\x1f") or (key[:1] == b"n" and key.endswith(b"\x1fc"))
            if not is_span:
                continue
            until_ms = json.loads(b64decode(kv["value"]))
            if (until_ms[0] if isinstance(until_ms, list) else until_ms) <= time.time() * 1000:
                return True
        return False

    def _leases(self) -> list[str]:
        found: Any = self._cluster.call("/v3/lease/leases", {})
        return [lease["ID"] for lease in found.get("leases", ())]

    def _is_overdue(self, lease: str, span_ms: int) -> bool:
        """Return whether a lease that was granted for about this time still exists."""
        found: Any = self._cluster.call("/v3/lease/timetolive", {"ID": lease})
        granted_s, left_s = int(found.get("grantedTTL", 0)), int(found.get("TTL", 0))
        return 0 < granted_s * SHORTEST_MS <= span_ms and left_s == 0
