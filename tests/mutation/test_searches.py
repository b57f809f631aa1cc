"""A part of the simulator's search per store, as a fast test for mutants."""

from __future__ import annotations

from lockfast.sim.search import compare_table, first_failure


def test_memory() -> None:
    for seed in range(8):
        assert compare_table(seed) is None
    assert first_failure(range(150)) is None


def test_sqlite() -> None:
    assert first_failure(range(60), "sqlite") is None


def test_redis() -> None:
    assert first_failure(range(60), "redis") is None


def test_etcd() -> None:
    assert first_failure(range(60), "etcd") is None


def test_quorum() -> None:
    assert first_failure(range(60), "quorum") is None


def test_zookeeper() -> None:
    assert first_failure(range(25), "zookeeper") is None


def test_postgresql() -> None:
    assert first_failure(range(25), "postgresql") is None
