"""The majority store against its floor, healthy and with two of five nodes dead or stopped.

The floor is five pairs of trivial scripts on the same connections, sent and awaited in parallel,
without a lock manager around them. Other libraries are not measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import lockfast
from bench.rounds import in_turn
from lockfast.stores.quorum.codec import keys_of
from lockfast.stores.quorum.links import Link
from lockfast.stores.redis.address import Address
from lockfast.stores.redis.resp import pack
from tests.servers.redis import RedisServer

PAIRS = 200
CONTENDERS = 8
CONTENTION_S = 3.0
HOLD_S = 0.001
NAMESPACE = "bench"
TAKE = "redis.call('SET', KEYS[1], ARGV[1], 'PX', 30000) return redis.call('INCR', KEYS[2])"
GIVE = "return redis.call('DEL', KEYS[1])"


class Floor:
    """One round trip to all nodes at once to acquire, one to release."""

    def __init__(self, servers: list[RedisServer]) -> None:
        import select

        addresses = [Address(str(s.socket), path=str(s.socket)) for s in servers]
        self._links = [Link(each, (pack("PING"),)) for each in addresses]
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


def _known(server: RedisServer) -> None:
    """Make the node believe that it has been running for a long time."""
    info = server.run("INFO", "server")
    run = next(line for line in info.splitlines() if line.startswith("run_id:"))
    server.run(
        "HSET", keys_of(NAMESPACE)[0], "run", run.partition(":")[2].strip(), "floor", 0, "silent", 0
    )


def _time_us(pair: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(PAIRS):
        pair()
    return (time.perf_counter() - began) / PAIRS * 1e6


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


def _print_shares(shares: list[Share]) -> None:
    grants = [share.grants for share in shares]
    print(
        f"{CONTENDERS} contenders: {sum(grants) / CONTENTION_S:.0f} grants/s,"
        f" {min(grants)} to {max(grants)} each,"
        f" longest wait {max(share.longest_s for share in shares):.2f} s"
    )


def run_quorum(rounds: int) -> None:
    """Print the time of a pair: the floor, all nodes up, two nodes out."""
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(5)]
        for server in servers:
            _known(server)
        paths = ",".join(str(Path(server.socket)) for server in servers)
        client = stack.enter_context(
            lockfast.connect(f"quorum+unix://{paths}?namespace={NAMESPACE}", ttl=30)
        )
        floor = Floor(servers)
        stack.callback(floor.close)

        def pair() -> None:
            with client.lock("a"):
                pass

        figures: dict[str, list[float]] = {"floor": [], "lockfast": []}
        floor.pair()
        pair()
        for name, work in in_turn((("floor", floor.pair), ("lockfast", pair)), rounds):
            figures[name].append(_time_us(work))
        shares = _contend(f"quorum+unix://{paths}?namespace={NAMESPACE}")
        servers[0].kill()
        stack.enter_context(servers[1].stopped())
        pair()
        figures["lockfast, one dead and one stopped"] = [_time_us(pair) for _ in range(rounds)]
    _print_shares(shares)
    least = median(figures["floor"])
    for name, values in figures.items():
        print(f"{name:38} {median(values):8.0f} us a pair  {median(values) / least:5.2f} x floor")
