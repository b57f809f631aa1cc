"""Ctrl-C in one caller does not block the others of its client, at etcd and ZooKeeper.

A caller that was interrupted between two steps could leave its place among the callers of its
client to nobody: in the batch that it was to send, as the one who finds out whether a lock is free,
or in its turn at a lock. On etcd the client could not take that lock any more, and after two such
interruptions send nothing. What follows an interruption is tried for each point of our code.
"""

from __future__ import annotations

import gc
import itertools
import sys
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from lockfast.core import commands as c
from lockfast.ports import Store
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.zookeeper import ZooKeeperStore
from tests.etcd.harness import address_of
from tests.etcd.model import ModelNetwork as EtcdNetwork
from tests.stress.test_interrupted_anywhere import Interruption
from tests.zookeeper.model import ModelNetwork as ZooKeeperNetwork

pytestmark = [
    pytest.mark.skipif(sys.implementation.name != "cpython", reason="knows CPython's byte code"),
    pytest.mark.filterwarnings("ignore:coroutine .*never awaited:RuntimeWarning"),
]

A = (c.Place("lock", "a", "exclusive"),)
SEND_MS = 500


class OutsideTheModel(Interruption):
    """The modelled server is not interrupted."""

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return None if "/sim/" in frame.f_code.co_filename else super()._enter(frame, event, arg)


def a_store(kind: str) -> Store:
    if kind == "etcd":
        return EtcdStore(address_of("etcd://model"), EtcdNetwork())
    return ZooKeeperStore("zookeeper://model", "/lockfast/default", ZooKeeperNetwork())


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
def test_the_next_caller_goes_on(kind: str) -> None:
    gc.collect()  # what earlier tests have left is not to be finalized under the tracer
    store = a_store(kind)
    caller, keeper = store.caller_wire(), store.keeper_wire()
    assert isinstance(run(caller.send(c.Open("s", 60_000, "owner"), SEND_MS)), c.Done)
    for n in itertools.count(1, 2):
        interruption = OutsideTheModel(1 + n // 2)
        with suppress(KeyboardInterrupt), interruption.lurking():
            run(caller.send(c.Enter("s", n, A), SEND_MS))
            run(caller.send(c.Leave("s", n, A), SEND_MS))
        where = f"after Ctrl-C at {interruption.where}"
        assert isinstance(run(keeper.send(c.Leave("s", n, A), SEND_MS)), c.Done), where
        try:
            assert isinstance(run(caller.send(c.Enter("s", n + 1, A), SEND_MS)), c.Granted), where
            assert isinstance(run(caller.send(c.Leave("s", n + 1, A), SEND_MS)), c.Done), where
        except Exception as error:
            raise AssertionError(where) from error
        if not interruption.where:
            assert n > 200, "the tracer found next to nothing"
            return
