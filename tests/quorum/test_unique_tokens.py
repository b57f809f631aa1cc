"""No two grants have the same token, even if clients propose equal ballots for different locks."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import lockfast
from lockfast.stores.memory import wall_us
from tests.quorum.nodes import FiveNodes
from tests.quorum.test_conformance_sqlite import url_in

CLIENTS = 4


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_clients_that_propose_in_the_same_microsecond(
    kind: str, five: FiveNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "redis":
        url = five.url("unique-tokens")
    else:
        url = "quorum+memory://5/unique-tokens" if kind == "memory" else url_in(tmp_path)
    stopped_us: list[int] = []
    monkeypatch.setattr(
        "lockfast.stores.quorum.wall_us", lambda: stopped_us[0] if stopped_us else wall_us()
    )
    with ExitStack() as stack:
        clients = [stack.enter_context(lockfast.connect(url)) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            with client.lock(f"lock-{number}").acquire(timeout=10):
                pass  # sessions and connections are open
        stopped_us.append(wall_us())
        tokens = [
            stack.enter_context(client.lock(f"lock-{number}").acquire(timeout=10)).token
            for number, client in enumerate(clients)
        ]
        assert len(set(tokens)) == CLIENTS, tokens
