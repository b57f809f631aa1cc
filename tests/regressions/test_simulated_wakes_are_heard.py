"""The simulated Redis listener lacked a field of the real one and received no wake.

Keepers survive whatever a listener raises, and keep-alives find every grant, so the search
continued silently without ever testing wakes.
"""

from __future__ import annotations

import logging

import pytest

from lockfast.sim.mix import STORES, Mix
from lockfast.sim.search import try_seed


@pytest.mark.parametrize("store", STORES)
def test_nothing_unexpected_is_raised_in_a_world_without_faults(
    store: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            mix = Mix({"turns": {}}, store=store, ttl_ms=2000)
            assert try_seed(seed, mix)[1] == []
    assert [record.getMessage() for record in caplog.records if "failed" in record.msg] == []
