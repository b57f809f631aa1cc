"""The majority store against a floor and other libraries, on five Redis nodes and with two out.

The floor is five pairs of trivial scripts on the same connections, sent and awaited in parallel,
without a lock manager around them. The other libraries implement Redlock: they have no fencing
tokens, and do not renew a lock unless asked to. They are used with the default timeouts and
retries of their drivers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Protocol

import lockfast
from bench.report import Target, table
from bench.rounds import in_turn
from lockfast.stores.quorum.codec import keys_of
from lockfast.stores.quorum.links import Endpoint, Link
from lockfast.stores.quorum.redis import RedisFraming
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.resp import pack
from tests.servers.redis import RedisServer

FLOOR_TIMES_MAX = 1.3
OUT_TIMES_MAX = 1.5
"""A pair with two nodes out may take this much longer than with all nodes up."""
DEAD_TIMES_MIN = 10
STOPPED = "one dead, one stopped"
LIMIT_S = 15
PAIRS = 200
PEER_PAIRS = 40
OUT_PAIRS = 3
TTL_S = 30
CONTENDERS = 8
CONTENTION_S = 3.0
HOLD_S = 0.001
NAMESPACE = "bench"
TAKE = "redis.call('SET', KEYS[1], ARGV[1], 'PX', 30000) return redis.call('INCR', KEYS[2])"
GIVE = "return redis.call('DEL', KEYS[1])"


class Contestant(Protocol):
    def pair(self) -> None: ...
    def close(self) -> None: ...


class Floor:
    """One round trip to all nodes at once to acquire, one to release."""

    def __init__(self, servers: list[RedisServer]) -> None:
        import select

        addresses = [Address(str(s.socket), path=str(s.socket)) for s in servers]
        self._links = [
            Link(
                Endpoint(each.label, path=each.path),
                lambda each=each: RedisFraming(each, (pack("PING"),)),  # type: ignore[misc]
            )
            for each in addresses
        ]
        self._poll = select.poll()
        self._take = pack("EVAL", TAKE, 2, "floor", "token", "us")
        self._give = pack("EVAL", GIVE, 1, "floor")

    def pair(self) -> None:
        self._fly(self._take)
        self._fly(self._give)

    def _fly(self, packed: bytes) -> None:
        answers: list[object] = []
        by_fd = {}
        for link in self._links:
            link.request(packed, answers.append, self)
            assert link.socket is not None
            by_fd[link.socket.fileno()] = link
            self._poll.register(link.socket)
        while len(answers) < len(self._links) // 2 + 1:
            for fd, _ in self._poll.poll(1000):
                by_fd[fd].step()

    def close(self) -> None:
        for link in self._links:
            link.close()


class Lockfast:
    def __init__(self, url: str) -> None:
        self._client = lockfast.connect(url, ttl=TTL_S)
        self._lock = self._client.lock("a")

    def pair(self) -> None:
        self._lock.acquire().release()

    def close(self) -> None:
        self._client.close()


class RedlockPy:
    name = "redlock-py"

    def __init__(self, sockets: Sequence[Path]) -> None:
        import redis
        import redlock

        # It logs a traceback for each node that does not answer.
        logging.getLogger().addHandler(logging.NullHandler())
        self._manager: Any = redlock.Redlock(
            [redis.Redis(unix_socket_path=str(path)) for path in sockets]
        )

    def pair(self) -> None:
        self._manager.unlock(self._manager.lock(self.name, TTL_S * 1000))

    def close(self) -> None:
        for server in self._manager.servers:
            server.close()


class Pottery:
    name = "pottery"

    def __init__(self, sockets: Sequence[Path]) -> None:
        import pottery
        import redis

        self._masters = {redis.Redis(unix_socket_path=str(path)) for path in sockets}
        self._lock: Any = pottery.Redlock(
            key=self.name, masters=self._masters, auto_release_time=TTL_S
        )

    def pair(self) -> None:
        assert self._lock.acquire()
        self._lock.release()

    def close(self) -> None:
        for master in self._masters:
            master.close()


class Aioredlock:
    name = "aioredlock"

    def __init__(self, sockets: Sequence[Path]) -> None:
        import aioredlock

        logging.getLogger("aioredlock").addHandler(logging.NullHandler())
        self._loop = asyncio.new_event_loop()
        self._manager: Any = aioredlock.Aioredlock([str(path) for path in sockets])

    def pair(self) -> None:
        self._loop.run_until_complete(self._pair())

    async def _pair(self) -> None:
        await self._manager.unlock(await self._manager.lock(self.name, lock_timeout=TTL_S))

    def close(self) -> None:
        self._loop.run_until_complete(self._manager.destroy())
        self._loop.close()


PEERS = (RedlockPy, Pottery, Aioredlock)


def _known(server: RedisServer) -> None:
    """Make the node believe that it has been running for a long time."""
    info = server.run("INFO", "server")
    run = next(line for line in info.splitlines() if line.startswith("run_id:"))
    server.run(
        "HSET", keys_of(NAMESPACE)[0], "run", run.partition(":")[2].strip(), "floor", 0, "silent", 0
    )


def _time_us(contestant: Contestant, pairs: int) -> float:
    """Return the median time of a pair."""
    times = []
    for _ in range(pairs):
        began = time.perf_counter()
        contestant.pair()
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


def _time_or_error(contestant: Contestant, pairs: int) -> float | str:
    """Return the time of a pair, or how it fails."""
    found: list[float | str] = []

    def measure() -> None:
        try:
            contestant.pair()  # notices which nodes are out
            found.append(_time_us(contestant, pairs))
        except Exception as error:
            found.append(f"raises {type(error).__name__}")

    # A library without timeouts waits for a stopped node for ever.
    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else f"over {LIMIT_S} s"


class QuorumFigures(NamedTuple):
    """Microseconds of a pair, by contestant."""

    healthy: dict[str, float]
    dead: dict[str, float | str]
    """With two nodes dead; how it fails if it does."""
    stopped: dict[str, float | str]
    """With one node dead and one stopped."""
    shares: list[Share]


class Share(NamedTuple):
    """The share of one of several contenders."""

    grants: int
    longest_s: float
    """Its longest wait."""


def _contend(url: str) -> list[Share]:
    """Let clients contend for one lock. There is no queue, so measure fairness."""
    stop_s = time.monotonic() + CONTENTION_S

    def work() -> Share:
        grants, longest_s = 0, 0.0
        with lockfast.connect(url, ttl=30) as client:
            while (began_s := time.monotonic()) < stop_s:
                with client.lock("contended"):
                    longest_s = max(longest_s, time.monotonic() - began_s)
                    grants += 1
                    time.sleep(HOLD_S)
        return Share(grants, longest_s)

    with ThreadPoolExecutor(CONTENDERS) as pool:
        return [each.result() for each in [pool.submit(work) for _ in range(CONTENDERS)]]


def run_quorum(rounds: int, without: Sequence[str]) -> QuorumFigures:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(5)]
        for server in servers:
            _known(server)
        sockets = [Path(server.socket) for server in servers]
        url = f"quorum+unix://{','.join(map(str, sockets))}?namespace={NAMESPACE}"
        ours = Lockfast(url)
        peers: dict[str, Contestant] = {
            peer.name: peer(sockets) for peer in PEERS if peer.name not in without
        }
        everyone: dict[str, Contestant] = {"floor": Floor(servers), "lockfast": ours, **peers}
        found: dict[str, list[float]] = {name: [] for name in everyone}
        for contestant in everyone.values():
            contestant.pair()
        for name, contestant in in_turn(list(everyone.items()), rounds):
            pairs = PEER_PAIRS if name in peers else PAIRS
            found[name].append(_time_us(contestant, pairs))
        shares = _contend(url)
        servers[0].kill()
        dead: dict[str, float | str] = {}
        stopped: dict[str, float | str] = {}
        # Lockfast first: a library that does not answer in time goes on in the background.
        for group, pairs in (({"lockfast": ours}, PAIRS * rounds), (peers, OUT_PAIRS)):
            servers[1].kill()
            dead |= {name: _time_or_error(each, pairs) for name, each in group.items()}
            servers[1].start()
            with servers[1].stopped():
                stopped |= {name: _time_or_error(each, pairs) for name, each in group.items()}
        for name, contestant in everyone.items():
            if not str(stopped.get(name)).startswith("over"):
                contestant.close()
    healthy = {name: median(times) for name, times in found.items()}
    return QuorumFigures(healthy, dead, stopped, shares)


def targets_quorum(figures: QuorumFigures) -> list[Target]:
    healthy, ours = figures.healthy, figures.healthy["lockfast"]
    peers = [name for name in healthy if name not in ("floor", "lockfast")]
    floor = ours / healthy["floor"]
    judged = [
        Target(
            f"pair at most {FLOOR_TIMES_MAX:g} × the floor",
            f"{floor:.2f} ×",
            floor <= FLOOR_TIMES_MAX,
        ),
    ]
    for what, found in (("two nodes dead", figures.dead), (STOPPED, figures.stopped)):
        out = _times(found["lockfast"], ours)
        text = f"{what}: at most {OUT_TIMES_MAX:g} × healthy"
        judged.append(Target(text, f"{out:.2f} ×", out <= OUT_TIMES_MAX))
    for name in peers:
        ratio = healthy[name] / ours
        judged.append(Target(f"pair faster than {name}", f"{ratio:.1f} × faster", ratio > 1))
    for what, found in (("two nodes dead", figures.dead), (STOPPED, figures.stopped)):
        for name in peers:
            ratio = _times(found[name], found["lockfast"])
            measured = found[name] if isinstance(found[name], str) else f"{ratio:.1f} × faster"
            text = f"{what}: {DEAD_TIMES_MIN} × faster than {name}"
            judged.append(Target(text, str(measured), ratio >= DEAD_TIMES_MIN))
    return judged


def _times(took: float | str, other: float | str) -> float:
    """Return how many times longer one took than another; a failure takes for ever."""
    if isinstance(other, str):
        return 0.0
    return inf if isinstance(took, str) else took / other


def report_quorum(figures: QuorumFigures) -> str:
    floor = figures.healthy["floor"]
    rows = [
        (
            name,
            f"{took:.0f}",
            f"{took / floor:.2f}",
            _shown(figures.dead.get(name, "")),
            _shown(figures.stopped.get(name, "")),
        )
        for name, took in figures.healthy.items()
    ]
    heads = ("", "pair µs", "× floor", "two nodes dead, µs", f"{STOPPED}, µs")
    judged = [
        (target.text, target.measured, "met" if target.met else "missed")
        for target in targets_quorum(figures)
    ]
    grants = [share.grants for share in figures.shares]
    contention = (
        f"{CONTENDERS} contenders: {sum(grants) / CONTENTION_S:.0f} grants/s,"
        f" {min(grants)} to {max(grants)} each,"
        f" longest wait {max(share.longest_s for share in figures.shares):.2f} s"
    )
    return "\n\n".join(
        [
            table("Acquire + release on a majority of five nodes", heads, rows),
            contention,
            table("Targets", ("", "measured", ""), judged),
        ]
    )


def _shown(took: float | str) -> str:
    return took if isinstance(took, str) else f"{took:.0f}"
