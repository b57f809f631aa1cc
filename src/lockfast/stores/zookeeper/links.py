"""The ZooKeeper sessions of one store object: one per Lockfast session, and a common one."""

from __future__ import annotations

from collections.abc import Callable

from lockfast.core.commands import WAKE_ENDED, Wake
from lockfast.errors import OutcomeUnknownError, StoreUnavailableError
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.steps import Context, Wait
from lockfast.stores.zookeeper.transport import Link, OnEvent

COMMON_TIMEOUT_MS = 10_000


class Links:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._network = context.network
        self._mutex = context.network.mutex()
        self._common: Link | None = None
        self.listeners: set[OnEvent] = set()
        """Called with events on the common link."""

    async def common(self, wait: Wait, until_ms: int) -> Link:
        """Return the link for commands that do not belong to one of our sessions."""
        with self._mutex:
            link = self._common
            if link is None or link.is_lost():
                link = self._network.link(
                    COMMON_TIMEOUT_MS, self._tell, lambda: self._tell(""), pings=True
                )
                self._common = link
        await self._open(link, wait, until_ms)
        return link

    def _tell(self, path: str) -> None:
        for on_event in list(self.listeners):
            on_event(path)

    async def of_session(self, own: OwnSession, timeout_ms: int, wait: Wait, until_ms: int) -> Link:
        if own.link is None or own.link.is_lost():
            own.link = self._network.link(timeout_ms, _events_of(own), self._lost(own), pings=False)
        await self._open(own.link, wait, until_ms)
        return own.link

    async def _open(self, link: Link, wait: Wait, until_ms: int) -> None:
        if link.timeout_ms:
            return
        left_ms = until_ms - self._network.now_ms()
        try:
            await wait(link.open(), max(1, left_ms))
        except OutcomeUnknownError as error:
            raise StoreUnavailableError(error.store, error.what, error.advice) from None

    def _lost(self, own: OwnSession) -> Callable[[], None]:
        def lost() -> None:
            deliver = own.deliver
            if own.row is not None and deliver is not None:
                deliver(Wake(own.row.inbox, own.id, 0, WAKE_ENDED))
            _events_of(own)("")

        return lost

    def close(self) -> None:
        with self._mutex:
            link, self._common = self._common, None
        if link is not None:
            link.close()
        for own in self._context.own.all():
            if own.link is not None:
                own.link.close()


def _events_of(own: OwnSession) -> Callable[[str], None]:
    def on_event(path: str) -> None:
        if own.on_event is not None:
            own.on_event(path)

    return on_event
