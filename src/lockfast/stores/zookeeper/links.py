"""The ZooKeeper sessions of one store object: one per Lockfast session, and a common one."""

from __future__ import annotations

from lockfast.errors import StoreUnavailableError
from lockfast.stores.zookeeper.owned import OwnSession, OwnSessions
from lockfast.stores.zookeeper.transport import Link, Network, Waiting

COMMON_TIMEOUT_MS = 10_000


class Links:
    def __init__(self, label: str, network: Network, own: OwnSessions) -> None:
        self._label = label
        self._network = network
        self._own = own
        self._is_closed = False
        self._mutex = network.mutex()
        self.common_link: Link | None = None

    async def common(self, waiting: Waiting, until_ms: int) -> Link:
        """Return the link for commands that do not belong to one of our sessions."""
        with self._mutex:
            link = self.common_link
            if link is None or link.is_lost():
                self._check_open()
                link = self.common_link = self._network.link(
                    COMMON_TIMEOUT_MS, lambda _: None, lambda: None, pings=True
                )
        await self._open(link, waiting, until_ms)
        return link

    async def of_session(
        self, own: OwnSession, timeout_ms: int, waiting: Waiting, until_ms: int
    ) -> Link:
        with self._mutex:
            link = own.link
            if link is None or link.is_lost():
                self._check_open()
                link = own.link = self._network.link(timeout_ms, own.hear, own.lost, pings=False)
        await self._open(link, waiting, until_ms)
        return link

    def _check_open(self) -> None:
        """Raise StoreUnavailableError if a new link would never be closed."""
        if self._is_closed:
            raise StoreUnavailableError(self._label, "was closed")

    async def _open(self, link: Link, waiting: Waiting, until_ms: int) -> None:
        if not link.timeout_ms:
            await waiting.wait(link.open(), max(1, until_ms - self._network.now_ms()))

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            links = [self.common_link, *(own.link for own in self._own.all())]
        for link in links:
            if link is not None:
                link.close()
