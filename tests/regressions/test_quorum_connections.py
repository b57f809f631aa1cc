"""Connections to the nodes of a majority that look usable and are not.

A node that closes idle connections (Redis with `timeout`, every HTTP server) has closed those to
all nodes when a client comes back after a pause. The next requests were sent on them, so no node
answered and the outcome was unknown. And only the first address of a host name was ever tried.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from lockfast.stores.quorum import links
from tests.quorum.lines import played_node


def test_a_connection_that_was_closed_while_idle_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "IDLE_S", -1.0)  # a test need not pause
    told: list[Any] = []
    with played_node() as node:
        node.link.refresh()
        node.greet()
        node.link.retry_at_s = 0.0
        node.hang_up()
        node.link.request(b"take\n", told.append, "flight")
        assert told == [], "it waits for the next connection"
        node.greet()
        node.serve(b"take\n")
        node.step_until(lambda: told)
    assert told == [b"ok"]


def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def two_addresses(host: str, port: int, **rest: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, ("127.0.0.1", 1)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    with played_node(host="two.example") as node:
        node.link.refresh()
        node.step_until(lambda: node.link.socket is None)
        node.link.retry_at_s = 0.0
        node.link.refresh()
        node.greet()
