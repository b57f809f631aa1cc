"""Testing code that uses locks: a lost lease, an outage, a window that passes. Run with pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lockfast
from lockfast.testing import ControlledStore


def build_report(render: Callable[[], object]) -> None:  # the code under test
    with lockfast.lock("report", timeout=0):
        render()


def test_report_fails_when_its_lease_is_lost(lockfast_store: ControlledStore) -> None:
    with pytest.raises(lockfast.LeaseLostError, match="outage"):
        build_report(render=lambda: lockfast_store.lose("report", "outage"))
    lockfast_store.assert_free("report")


def test_report_holds_the_lock_while_it_renders(lockfast_store: ControlledStore) -> None:
    build_report(render=lambda: lockfast_store.assert_held("report"))


def test_job_runs_again_in_the_next_window(
    lockfast_store: ControlledStore, lockfast_client: lockfast.Client
) -> None:
    nightly = lockfast_client.once("nightly", at_least=300, at_most=3600)(lambda: "ran")
    assert [nightly(), nightly()] == ["ran", None]
    lockfast_store.clock.advance(300)
    assert nightly() == "ran"
