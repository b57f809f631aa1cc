"""The store behaves like the lock table, step by step, on thousands of random commands.

The test controls the clock: leases are granted for hours, and the test ends them when its clock
says so, as etcd would. Everything else is the shipped code: the same transactions, comparisons and
reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lockfast.conformance.commands import compare
from lockfast.core import commands as c
from lockfast.core.commands import READS
from lockfast.core.memory_rows import MemoryRows
from lockfast.core.reasons import EXPIRED
from lockfast.core.table import ENDED_KEPT_MS, Limits, Table
from lockfast.runtimes.threads import run
from lockfast.stores.derived.endings import Ending
from lockfast.stores.derived.steps import SEVERAL_MAX, Instant
from lockfast.stores.derived.stored import decode, encode
from lockfast.stores.etcd import EtcdStore
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.requests import REVOKE, Kv, Range
from lockfast.stores.etcd.sessions import Sessions, raised_base
from lockfast.stores.etcd.transport import Network
from lockfast.stores.etcd.wire import EtcdWire
from tests.etcd.harness import address_of
from tests.etcd.model import ModelNetwork
from tests.servers.etcd import EtcdCluster

STEPS = 100
KNOWN_DIFFERENCES = {153}
"""Each is in `test_known_differences.py`, as the shortest script and with its reason."""
SEEDS_OF_MODEL = [
    *(seed for seed in range(100, 110) if seed not in KNOWN_DIFFERENCES),
    128,
    158,
    206,
]
SEEDS = range(2)
SEEDS_OF_THREE = range(12, 13)


class StoreSteps:
    """The store behind `apply`, with a clock that the test sets."""

    def __init__(self, url: str, network: Network | None = None) -> None:
        self._store = EtcdStore(address_of(url), network)
        self._store.context.lease_s = lambda span_ms: 36_000
        self._store.context.marked_every = 2
        wire = self._store.caller_wire()
        assert isinstance(wire, EtcdWire)
        self._wire = wire
        self._gateway = wire.gateway
        self._keys = wire.gateway.keys
        self._places: dict[tuple[str, int], tuple[c.Place, ...]] = {}
        self._ended_ms: dict[str, int] = {}
        self._events: list[c.Event] = []
        self._read_up_to = 0
        # The log is written while somebody reads it, and the test's clock may be at any time.
        self._put(k.EPOCH_KEY, encode([0, k.SCHEMA, 1 << 62, 1]))
        self._logged = self._read_log(Instant(0, 0, by_server=False))

    def _until_ms(self) -> int:
        return self._gateway.until_ms(10_000)

    def _put(self, key: str, value: str) -> int:
        put = self._keys.put(key, value)
        return run(self._gateway.commit([put], (), self._until_ms())).revision

    def _all(self) -> list[Kv]:
        reads = self._keys.reads([Range("a", "z")])
        return run(self._gateway.read(reads, self._until_ms())).found(0).kvs

    def apply(self, command: c.Command, now_ms: int, wall_us: int) -> tuple[c.Reply, list[c.Wake]]:
        if isinstance(command, c.Enter):
            self._places.setdefault(command[:2], command.places)
        elif isinstance(command, c.Leave):
            command = command._replace(places=self._places.get(command[:2], ()))
        instant = Instant(now_ms, wall_us, by_server=False)
        if type(command) in READS:
            return self._read(command, instant), []
        self._raise_epoch(wall_us)
        wakes = self._end_what_is_due(instant)
        ends = isinstance(command, c.Close | c.Expel | c.RevokeSession)
        if ends:
            wakes += self._hints()
        outcome = run(self._wire.step(command, self._until_ms(), instant))
        reply = outcome.reply
        if isinstance(command, c.Enter) and isinstance(reply, c.Queued):
            # The reply to enter contains what the queue says of the claims ahead, not how often
            # they were renewed.
            looked = run(self._wire.step(c.Look(*command[:2]), self._until_ms(), instant)).reply
            assert isinstance(looked, c.Queued)
            assert [_apart(b) for b in reply.ahead] == [_apart(b) for b in looked.ahead]
            reply = looked
        for session in self._sessions_ended():
            self._ended_ms.setdefault(session, now_ms)
        if ends:
            wakes += self._hints()
        return reply, [*wakes, *outcome.wakes, *self._of_the_log(instant)]

    def _hints(self) -> list[c.Wake]:
        """A waiter watches the claim before it; to compare, return what it would receive."""
        stored = [(k.parse_place(kv.key), kv) for kv in self._all() if kv.key[0] == "n"]
        waiting = [k.claim_from(key, kv)[0] for key, kv in stored if key.line in "vw"]
        return [
            c.Wake(f"inbox of {claim.session}", claim.session, claim.n, c.WAKE_LOOK)
            for claim in waiting
        ]

    def _sessions_ended(self) -> list[str]:
        return [kv.key[2:] for kv in self._all() if kv.key[0] == "k"]

    def _raise_epoch(self, wall_us: int) -> None:
        """The reference's tokens follow the clock; the store's do when the epoch is raised."""
        answer = run(self._gateway.read(self._keys.reads([Range("e")]), self._until_ms()))
        base = k.base_from("", answer.found(0).kvs[0])
        raised = raised_base(base, answer.revision, wall_us, 0)
        if raised != base:
            context = self._store.context
            text = encode(list(raised))
            context.base = k.KnownBase(raised, Kv(k.EPOCH_KEY, text, self._put("e", text)))

    def _end_what_is_due(self, instant: Instant) -> list[c.Wake]:
        """End leases by the test's clock, and have the queues settled, as waiters would."""
        now_ms = instant.now_ms
        endings: list[Ending] = []
        places: list[c.Place] = []
        stored = {kv.key: kv for kv in self._all()}
        for key, kv in stored.items():
            if key[0] == "o":
                record = k.read(k.Record, kv)
                alive = k.read(k.Alive, stored[k.alive_key(key[2:])])
                if alive.renewed_ms + record.ttl_ms <= now_ms:
                    endings.append(Ending(key[2:], EXPIRED, "expired"))
            elif key[0] == "k" and self._ended_ms.get(key[2:], now_ms) + ENDED_KEPT_MS <= now_ms:
                run(self._gateway.commit([self._keys.delete(key)], (), self._until_ms()))
                self._store.context.own.forget(key[2:])
            elif key[0] == "u" and decode(kv.value) <= now_ms:
                run(self._gateway.call(REVOKE, encode({"ID": str(kv.lease)}), self._until_ms()))
                places += self._places.get((key.split(k.SEP)[1], int(key.split(k.SEP)[2])), ())
            elif key[0] == "n" and key.endswith("\x1fc") and decode(kv.value)[0] <= now_ms:
                run(self._gateway.call(REVOKE, encode({"ID": str(kv.lease)}), self._until_ms()))
                place = k.parse_place(key)
                places.append(c.Place(place.kind, place.name, ""))
        if not endings and not places:
            return []
        hints = self._hints()
        for ending in endings:
            self._ended_ms[ending.session] = now_ms
        execution = Execution(self._gateway, self._until_ms(), instant)
        sessions = Sessions(execution)
        return [*hints, *run(sessions.end(endings, places)).wakes, *self._hints()]

    # ── reading ──────────────────────────────────────────────────────────────────────

    def _read(self, command: c.Command, instant: Instant) -> c.Reply:
        if isinstance(command, c.Events):
            self._read_log(instant)
            end = len(self._events)
            oldest = 1 if self._events else end + 1
            if command.after is None:
                return c.EventsReply((), end, oldest, False)
            after = self._events[max(0, command.after) :]
            more = len(after) > command.limit
            return c.EventsReply(tuple(after[: command.limit]), end, oldest, more)
        return run(self._wire.step(command, self._until_ms(), instant)).reply

    def _read_log(self, instant: Instant) -> int:
        """Continue reading the log and number its events one by one, as the reference does."""
        events = c.Events(self._read_up_to, 10_000)
        reply = run(self._wire.step(events, self._until_ms(), instant)).reply
        assert isinstance(reply, c.EventsReply)
        for event in reply.events:
            self._events.append(event._replace(position=len(self._events) + 1))
        self._read_up_to = max(reply.end, self._read_up_to)
        return len(self._events)

    def _of_the_log(self, instant: Instant) -> list[c.Wake]:
        """Listeners receive the log by a watch; to compare, return what they would receive."""
        before, self._logged = self._logged, self._read_log(instant)
        if before == self._logged:
            return []
        sessions = [kv.key[2:] for kv in self._all() if kv.key[0] == "x"]
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


@pytest.mark.parametrize("seed", SEEDS_OF_MODEL)
def test_store_and_table_agree_on_the_model(seed: int) -> None:
    """As below, over the simulator's etcd, which answers immediately."""
    outcome = compare(lambda: StoreSteps("etcd://model", ModelNetwork()), reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS)
def test_store_and_table_agree(make_subject: Callable[[], StoreSteps], seed: int) -> None:
    """The same replies, wakes, events and state after each command."""
    outcome = compare(make_subject, reference, seed, STEPS)
    assert len(outcome.script) == STEPS


@pytest.mark.parametrize("seed", SEEDS_OF_THREE)
def test_store_and_table_agree_on_three_nodes(
    make_subject_of_three: Callable[[], StoreSteps], seed: int
) -> None:
    outcome = compare(make_subject_of_three, reference, seed, STEPS)
    assert len(outcome.script) == STEPS
