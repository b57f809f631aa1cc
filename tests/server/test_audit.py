"""The audit log cannot be flooded by requests that are refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lockfast.server import audit
from lockfast.server.audit import AuditLog, Refusals, Sender
from tests.server.conftest import Secured, take


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_repeated_refusals_are_counted_instead_of_written(secured: Secured) -> None:
    """Those of a stranger and of each principal separately, also behind one address."""
    with secured.http() as stranger, secured.http("bob") as bob, secured.http("alice") as alice:
        for _ in range(25):
            assert stranger.get("/v1/locks").status_code == 401
        for _ in range(15):
            assert take(bob, "orders/1", "b").status_code == 403
        assert take(alice, "billing/1", "a").status_code == 403
        call = secured.thread.loop.call_soon_threadsafe
        call(secured.thread.server._refusals.summarize)
        assert take(alice, "billing/2", "a").status_code == 403
    written = entries(secured.audit)
    by_bob = [entry for entry in written if entry.get("principal") == "bob"]
    by_alice = [entry["why"] for entry in written if entry.get("principal") == "alice"]
    by_none = [entry for entry in written if "principal" not in entry]
    for own, what, omitted in (
        (by_none, "login refused", 15),
        (by_bob, "request refused", 5),
    ):
        *lines, summary = own
        assert [line["what"] for line in lines] == [what] * audit.LINES_PER_SENDER
        assert (summary["what"], summary["count"]) == ("refusals omitted", omitted)
        assert summary["from"] == "127.0.0.1"
        assert summary["since"] <= lines[0]["at"]
    assert by_alice == [f"alice has no right to acquire 'billing/{number}'" for number in (1, 2)]


def test_an_interval_ends_with_a_summary_for_each_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of lines has a bound, however many addresses the requests come from."""
    monkeypatch.setattr(audit, "SENDERS_MAX", 3)
    monkeypatch.setattr(audit, "LINES_MAX", 4)
    monkeypatch.setattr(audit, "LINES_PER_SENDER", 2)
    monkeypatch.setattr(audit, "INTERVAL_S", 0.01)
    log = AuditLog(str(tmp_path / "audit.jsonl"))

    async def scenario() -> None:
        refusals = Refusals(log)
        for _ in range(3):
            for number in range(10):
                refusals.write("login refused", Sender(f"10.0.0.{number}"))
        while refusals._timer is not None:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    log.close()
    lines = entries(tmp_path / "audit.jsonl")
    assert [line["what"] for line in lines] == ["login refused"] * 4 + ["refusals omitted"] * 4
    counts = {line["from"]: line["count"] for line in lines[4:]}
    assert counts == {"10.0.0.0": 2, "10.0.0.1": 2, "10.0.0.2": 2, "other addresses": 20}
    assert sum(counts.values()) + 4 == 30


def test_a_server_that_stops_writes_its_summary(tmp_path: Path) -> None:
    secured = Secured(tmp_path, f"memory://{tmp_path}")
    with secured.thread, secured.http() as stranger:
        for _ in range(audit.LINES_PER_SENDER + 1):
            stranger.get("/v1/locks")
    assert entries(secured.audit)[-1]["what"] == "refusals omitted"
