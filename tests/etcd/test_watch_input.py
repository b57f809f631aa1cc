"""A watch delivers untrusted input: nothing that others write ends or blocks a listener."""

from __future__ import annotations

from base64 import b64encode

import pytest

from lockfast.core import commands as c
from lockfast.stores.derived.stored import encode
from lockfast.stores.etcd import layout as k
from tests.etcd.harness import address_of
from tests.etcd.lines import Client
from tests.etcd.model import ModelServer

HEIR = ["n\x1flock\x1forders/42\x1fw\x1frank\x1fs\x1f1", "no claim", 7]


def coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def put(server: ModelServer, key: str, value: str) -> None:
    root = address_of("etcd://model").root
    assert "error" not in server.call("/v3/kv/put", {"key": coded(root + key), "value": value})


@pytest.mark.parametrize(
    "value",
    [
        "",
        "no JSON",
        "[" * 100_000,
        "{}",
        "[7]",
        '[["granted"],"7"]',
        '[["granted"],-9000000000000000]',
        '[["granted"],9007199254740993]',
        '[[["granted"],7,null],1]',
        encode([["look"], -1, "", "", "", [HEIR]]),
        encode([["look"], -1, "", "", "", 7]),
    ],
)
def test_a_word_that_makes_no_sense_is_skipped(value: str) -> None:
    server = ModelServer()
    holder, waiter = Client(server, "a"), Client(server, "b")
    assert isinstance(holder.enter(1), c.Granted)
    assert isinstance(waiter.enter(1), c.Queued)
    put(server, k.word_key("b", 1), coded(value))
    put(server, "b\x1fb\x1fnumber", coded(value))
    waiter.listen()
    assert waiter.granted == []
    holder.leave(1)
    waiter.listen()
    assert waiter.granted == [1]
    waiter.leave(1)
    assert isinstance(holder.enter(2), c.Granted)
