"""A store object remembered every session that it had ever served (etcd, ZooKeeper).

A lock server over etcd or ZooKeeper therefore grew by about a kilobyte for each session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.core.table import ENDED_KEPT_MS
from lockfast.runtimes.threads import run
from lockfast.stores.derived.owned import TIDY_EVERY_MS
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import parse
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper import ZooKeeperStore
from tests.etcd.model import ModelNetwork as EtcdModel
from tests.zookeeper.model import ModelNetwork as ZooKeeperModel

TTL_MS = 30_000
TIMEOUT_MS = 5_000
MakeStore = Callable[[], Any]


def _etcd() -> EtcdStore:
    return EtcdStore(parse(parse_url("etcd://model")), EtcdModel())


def _zookeeper() -> ZooKeeperStore:
    return ZooKeeperStore("zookeeper://model", "/lockfast/default", ZooKeeperModel())


class Server:
    def __init__(self, store: Any) -> None:
        self.store = store
        self._wire = store.caller_wire()
        self._model = store.network.server

    def send(self, command: c.Command) -> c.Reply:
        reply: c.Reply = run(self._wire.send(command, TIMEOUT_MS))
        return reply

    def open(self, session: str) -> None:
        assert isinstance(self.send(c.Open(session, TTL_MS, "")), c.Done)

    def renew(self, session: str) -> c.Reply:
        return self.send(c.Renew(session, 0, 0, 1))

    def pass_ms(self, span_ms: int) -> None:
        self._model.now_us += span_ms * 1000

    def remembered(self) -> set[str]:
        return {own.id for own in self.store.context.own.all()}


@pytest.fixture(params=[_etcd, _zookeeper], ids=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest) -> Server:
    make_store: MakeStore = request.param
    return Server(make_store())


def test_they_are_forgotten(server: Server) -> None:
    server.open("closed")
    server.send(c.Close("closed"))
    server.open("crashed")
    server.pass_ms(ENDED_KEPT_MS)
    server.open("new")
    assert server.remembered() == {"closed", "crashed", "new"}, "a late request may still arrive"
    server.pass_ms(TTL_MS + TIDY_EVERY_MS)
    server.open("newer")
    assert server.remembered() == {"new", "newer"}


def test_a_session_that_is_renewed_is_remembered(server: Server) -> None:
    server.open("long-lived")
    for i in range(2 * ENDED_KEPT_MS // TTL_MS):
        server.pass_ms(TTL_MS // 2)
        assert server.renew("long-lived") == c.Renewed(True)
        server.pass_ms(TTL_MS // 2)
        assert server.renew("long-lived") == c.Renewed(True)
        server.open(f"short-lived {i}")
    assert "long-lived" in server.remembered()
    assert "short-lived 0" not in server.remembered()
