"""A store that was closed opens no connection that nobody would close."""

from __future__ import annotations

import asyncio

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.stores.zookeeper import ZooKeeperStore
from tests.zookeeper.model import ModelNetwork


def test_a_closed_store_opens_no_link() -> None:
    network = ModelNetwork()
    store = ZooKeeperStore("zookeeper://model", "/lockfast", network)
    store.close()
    own = store.context.own.begin("session")
    until_ms = network.now_ms() + 1000
    with pytest.raises(StoreUnavailableError, match="closed"):
        asyncio.run(store.context.links.common(network.keeper, until_ms))
    with pytest.raises(StoreUnavailableError, match="closed"):
        asyncio.run(store.context.links.of_session(own, 1000, network.keeper, until_ms))
    assert own.link is None
