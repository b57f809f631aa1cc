"""The store does what the lock table does, step by step, on thousands of random commands.

The clock is the test's, so sessions end by it and not by their leases; everything else is
what ships: the same transactions, comparisons and reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.table import READS, Limits, Table
from lockfast.runtimes.threads import run
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd.address import parse
from lockfast.stores.etcd.epoch import raise_epoch
from lockfast.stores.etcd.outcome import Instant
from lockfast.stores.etcd.rows import EPOCH_KEY, LOG_KEY, Base, encode, end_of, watcher_key
from lockfast.stores.etcd.steps import SEVERAL_MAX
from lockfast.stores.etcd.wire import EtcdWire
from lockfast.stores.registry import parse_url
from tests.servers.etcd import EtcdCluster

STEPS = 100
SEEDS = range(12)
SEEDS_OF_THREE = range(12, 16)


class StoreSteps:
    """The store behind `apply`, with a clock that the test sets."""

    def __init__(self, url: str) -> None:
        self._store = EtcdStore(parse(parse_url(url)))
        wire = self._store.caller_wire()
        assert isinstance(wire, EtcdWire)
        self._wire = wire
        self._places: dict[tuple[str, int], tuple[c.Place, ...]] = {}
        self._raised_us = self._logged = 0
        # The log is written while somebody reads it, and the test's clock may be at any time.
        base = encode(Base(0, log_until_ms=1 << 62))
        put = self._store.shared.keys.put(EPOCH_KEY, base)
        run(wire.gateway.txn({"success": [put]}, monotonic() + 10))

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        if isinstance(command, c.Enter):
            self._places.setdefault(command[:2], command.places)
        elif isinstance(command, c.Leave):
            command = command._replace(places=self._places.get(command[:2], ()))
        instant = Instant(now_ms, wall_us, by_lease=False)
        until_s = monotonic() + 10
        if type(command) in READS:
            return run(self._wire.step(command, until_s, instant)).reply, []
        if wall_us > self._raised_us:
            # The reference's tokens follow the clock; ours do when somebody raises the epoch.
            keys = self._store.shared.keys
            run(raise_epoch(self._wire.gateway, keys, wall_us, until_s))
            self._raised_us = wall_us
        reply, wakes = run(self._wire.step(command, until_s, instant))
        if isinstance(command, c.Enter) and isinstance(reply, c.Queued):
            # Who was put in line unseen knows of those ahead what stands there with them,
            # and not how often they were renewed.
            looked = run(self._wire.step(c.Look(*command[:2]), until_s, instant)).reply
            assert isinstance(looked, c.Queued)
            assert [_apart(b) for b in reply.ahead] == [_apart(b) for b in looked.ahead]
            reply = looked
        return reply, [*wakes, *self._of_the_log()]

    def _of_the_log(self) -> list[c.Wake]:
        """Ears hear the log by themselves; to compare, say what they would hear."""
        keys = self._store.shared.keys
        reads = [keys.range(LOG_KEY), keys.range(watcher_key(""), end_of(watcher_key("")))]
        answer = run(self._wire.gateway.txn({"success": reads}, monotonic() + 10))
        log, watchers = (keys.found(response) for response in answer["responses"])
        if not log.kvs or log.kvs[0].mod == self._logged:
            return []
        self._logged = log.kvs[0].mod
        sessions = [kv.key[2:] for kv in watchers.kvs]
        return [c.Wake(f"inbox of {one}", one, 0, c.WAKE_EVENTS) for one in sessions]

    def close(self) -> None:
        self._store.close()


def _apart(blocker: c.Blocker) -> c.Blocker:
    return blocker._replace(renewals=0)


@pytest.fixture
def make_subject(node: EtcdCluster) -> Iterator[Callable[[], StoreSteps]]:
    yield from _making(node)


@pytest.fixture
def make_subject_of_three(trio: EtcdCluster) -> Iterator[Callable[[], StoreSteps]]:
    yield from _making(trio)


def _making(cluster: EtcdCluster) -> Iterator[Callable[[], StoreSteps]]:
    made: list[StoreSteps] = []

    def make() -> StoreSteps:
        made.append(StoreSteps(cluster.url()))
        return made[-1]

    yield make
    for subject in made:
        subject.close()


def reference() -> Table:
    return Table(MemoryRows(), Limits(places_max=SEVERAL_MAX))


@pytest.mark.parametrize("seed", SEEDS)
def test_store_and_table_agree(make_subject: Callable[[], StoreSteps], seed: int) -> None:
    """The same answers, wakes, events and state after each command."""
    outcome = compare(make_subject, reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS_OF_THREE)
def test_store_and_table_agree_on_three_nodes(
    make_subject_of_three: Callable[[], StoreSteps], seed: int
) -> None:
    outcome = compare(make_subject_of_three, reference, seed, STEPS)
    assert len(outcome.script) == STEPS
