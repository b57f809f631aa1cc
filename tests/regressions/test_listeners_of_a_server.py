"""A lock server keeps a session's listener as long as the session, and tells it who waits.

On etcd and ZooKeeper each session has its own listener. The server told it which claims wait, but
not when they had stopped: it looked at every claim that had ever waited, one request each. And the
server closed it before it revoked the session: if that failed, the session stayed, and
its client got no wakes any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import lockfast
from lockfast.core.commands import Blocker, Command, Reply, RevokeSession
from lockfast.errors import StoreError
from lockfast.server.service import Service
from lockfast.server.wakes import Wakes
from lockfast.stores.etcd.wake_listener import EtcdWakeListener
from lockfast.stores.lockserver.routes import request_of
from tests.processes.crew import until
from tests.servers.etcd import EtcdCluster
from tests.servers.lockserver import ServerThread

HEADERS = {"Content-Type": "application/json"}
PATIENCE_S = 60.0


def test_a_claim_that_has_stopped_waiting_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: dict[int, Sequence[Blocker]] = {}
    watch_over = EtcdWakeListener.watch_over

    def note(self: EtcdWakeListener, n: int, blockers: Sequence[Blocker]) -> None:
        waiting[n] = blockers
        watch_over(self, n, blockers)

    with (
        EtcdCluster(1) as node,
        ServerThread(node.url("listeners")) as server,
        lockfast.connect(server.url()) as holder,
        lockfast.connect(server.url()) as waiter,
        ThreadPoolExecutor(1) as threads,
    ):
        lease = holder.lock("orders/42").acquire()
        monkeypatch.setattr(EtcdWakeListener, "watch_over", note)
        lock = waiter.lock("orders/42")
        with pytest.raises(lockfast.AcquireTimeoutError):
            lock.acquire(timeout=1)
        until(lambda: bool(waiting) and not any(waiting.values()), "it has given up")
        granted = threads.submit(lock.acquire, timeout=PATIENCE_S)
        until(lambda: holder.inspect("orders/42").waiting_count == 1, "it waits again")
        lease.release()
        granted.result(PATIENCE_S).release()
        until(lambda: not any(waiting.values()), "it was granted and released")


def test_the_listener_of_a_session_that_was_not_revoked_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send, forgotten = Service.send, []

    async def fail(self: Service, command: Command) -> Reply:
        if isinstance(command, RevokeSession):
            raise StoreError("etcd://broken", "cannot be read")
        return await send(self, command)

    with (
        ServerThread("memory://listeners") as server,
        lockfast.connect(server.url()) as holder,
        holder.lock("orders/42") as lease,
    ):
        monkeypatch.setattr(Service, "send", fail)
        monkeypatch.setattr(Wakes, "forget", lambda self, session: forgotten.append(session))
        request = request_of(RevokeSession(lease.session, "admin", "maintenance"))
        with pytest.raises(HTTPError):
            urlopen(Request(server.url() + request[1], request[2], HEADERS, method=request[0]))
        assert forgotten == []
