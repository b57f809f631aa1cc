"""A connection to a slow node carries a bounded number of requests."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

import pytest

from lockfast.errors import StoreUnavailableError
from lockfast.stores.quorum import links
from tests.quorum.lines import played_node


def test_what_is_not_sent_can_be_withdrawn() -> None:
    told: dict[str, Any] = {}
    with played_node(window=1) as node:
        node.link.refresh()
        node.greet()
        for name in ("first", "second", "third"):
            node.link.request(f"{name}\n".encode(), partial(told.__setitem__, name), name)
        node.link.withdraw("second")
        assert isinstance(told["second"].error, StoreUnavailableError)
        assert not told["second"].maybe
        node.serve(b"first\n")
        node.step_until(lambda: "first" in told)
        node.serve(b"third\n")
        node.step_until(lambda: "third" in told)


def test_what_waits_too_long_at_a_slow_node_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases cannot be withdrawn; they must not accumulate."""
    told: list[Any] = []
    with played_node(window=1) as node:
        node.link.refresh()
        node.greet()
        now_s = [monotonic()]
        monkeypatch.setattr(links, "monotonic", lambda: now_s[0])
        node.link.request(b"first\n", lambda reply: None, "flight")
        for name in (b"second\n", b"third\n"):
            node.link.request(name, told.append, None)
        now_s[0] += 0.9 * links.STALL_S
        node.serve(b"first\n")
        node.step_until(lambda: len(node.link._waiting) == 1)  # the second is sent
        node.link.withdraw("flight")
        assert told == []
        now_s[0] += 0.2 * links.STALL_S
        node.link.refresh()
        assert [answer.maybe for answer in told] == [False], "the third is not"
