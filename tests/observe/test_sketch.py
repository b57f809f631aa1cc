"""The stated error of percentiles, and the constant memory of windows."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockfast.telemetry.sketch import BUCKETS, ERROR_MAX, HIGHEST_S, LOWEST_S, Sketch
from lockfast.telemetry.stats import OTHER, PREFIXES_MAX, Collector, prefix_of

values = st.lists(st.floats(LOWEST_S, HIGHEST_S), min_size=1, max_size=200)


@given(values, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_off_by_at_most_the_stated_error(numbers: list[float], p: float) -> None:
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    true = sorted(numbers)[max(1, math.ceil(p * len(numbers))) - 1]
    found = sketch.percentile(p)
    assert found is not None
    assert found / true - 1 <= ERROR_MAX + 1e-9
    assert true / found - 1 <= ERROR_MAX + 1e-9


def test_the_error_is_below_five_percent() -> None:
    assert ERROR_MAX < 0.05


@pytest.mark.parametrize(("value", "expected"), [(0.0, 0.0), (1e-9, 0.0), (1e9, HIGHEST_S)])
def test_values_out_of_range_are_clipped(value: float, expected: float) -> None:
    sketch = Sketch()
    sketch.add(value)
    found = sketch.percentile(0.5)
    assert found is not None
    assert found == pytest.approx(expected, rel=0.1)


def test_sketches_add_up() -> None:
    rng = random.Random(1)
    parts, whole = [Sketch() for _ in range(5)], Sketch()
    for _ in range(2000):
        value = rng.lognormvariate(-5, 2)
        rng.choice(parts).add(value)
        whole.add(value)
    total = Sketch.sum_of(parts)
    assert total.count == whole.count == 2000
    assert total.percentile(0.99) == whole.percentile(0.99)


def test_windows_slide() -> None:
    collector, start = Collector(), 10_000_000_000_000
    collector.waited(start, "orders/1", 5000, contended=True)
    for after_s, minute, quarter, hour in ((10, 1, 1, 1), (70, 0, 1, 1), (1000, 0, 0, 1)):
        overall = collector.stats(start + after_s * 1_000_000).overall
        found = [overall[window].granted for window in ("1m", "15m", "1h")]
        assert found == [minute, quarter, hour], after_s
    assert collector.stats(start + 4_000_000_000).overall["1h"].acquires == 0


def test_a_slot_that_is_used_again_forgets_the_round_before() -> None:
    collector, start = Collector(), 10_000_000_000_000
    collector.waited(start, "a", 5000, contended=False)
    collector.waited(start + 60_000_000, "a", 7000, contended=False)
    assert collector.stats(start + 60_000_000).overall["1m"].granted == 1


def test_any_number_of_names_takes_a_bounded_amount_of_memory() -> None:
    collector = Collector()
    for number in range(5000):
        collector.waited(10**13 + number, f"prefix{number}/x", number, contended=False)
    stats = collector.stats(10**13 + 5000)
    assert len(stats.by_prefix) == PREFIXES_MAX + 1
    assert stats.by_prefix[OTHER]["1m"].granted == 5000 - PREFIXES_MAX
    assert stats.overall["1m"].granted == 5000
    assert BUCKETS < 250


@pytest.mark.parametrize(
    ("name", "prefix"), [("orders/42", "orders"), ("report:7/x", "report"), ("nightly", "nightly")]
)
def test_prefixes(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix
