"""The conformance suite's harness for ZooKeeper: it waits until sessions have expired."""

from __future__ import annotations

import json
import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from lockfast.conformance.drivers import PATIENCE_S
from lockfast.conformance.harness import Harness
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper import ZooKeeperStore
from lockfast.stores.zookeeper.address import parse
from lockfast.stores.zookeeper.entries import KEPT
from tests.servers.zookeeper import ZooKeeperEnsemble

LOOK_EVERY_S = 0.02


class ZooKeeperHarness(Harness):
    """An ensemble with one API, in a new namespace."""

    def __init__(self, ensemble: ZooKeeperEnsemble, face: str) -> None:
        super().__init__(ensemble.url(), face, ZooKeeperStore.capabilities, log_kept=KEPT)
        self._hosts = ensemble.hosts()

    def many_together(self) -> tuple[str, ...]:
        """One name, since the store counts writes, not events."""
        return super().many_together()[:1]

    async def pass_ms(self, span_ms: int) -> None:
        """ZooKeeper ends a session a third of its TTL and up to two ticks later than the client
        does."""
        await super().pass_ms(span_ms)
        client: Any = KazooClient(self._hosts)
        client.start_async().wait(PATIENCE_S)
        try:
            give_up_s = self.driver.now_s() + PATIENCE_S
            while self._has_overdue(client):
                assert self.driver.now_s() < give_up_s, "a session does not end"
                await self.driver.pause(LOOK_EVERY_S)
        finally:
            client.stop()
            client.close()

    def _has_overdue(self, client: Any) -> bool:
        """Return True if a session was not renewed for its TTL and still exists."""
        root = parse(parse_url(self.url)).root
        try:
            for node in client.get_children_async(f"{root}/s").get(timeout=5):
                session, _ = client.get_async(f"{root}/s/{node}").get(timeout=5)
                alive, _ = client.get_async(f"{root}/p/{node}").get(timeout=5)
                ttl_ms, renewed_ms = json.loads(session)[0], json.loads(alive)[1]
                if renewed_ms + ttl_ms <= time.time() * 1000:
                    return True
        except NoNodeError:
            return bool(client.exists_async(root).get(timeout=5))  # it ended in between
        return False
