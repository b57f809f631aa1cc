"""The lock server: the cost of a pair over a bare request, and hand-overs with many sessions.

Two comparisons are included: the lock API of an etcd node (`/v3/lock`) on the same transport, and a
hand-over between clients of two servers over one Redis against one between clients of the same
server.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import lockfast
from bench.figures import Summary, summary
from lockfast.core import commands as c
from lockfast.runtimes.threads import run
from lockfast.stores.http.blocking import Connection
from lockfast.stores.http.members import Member, Members
from lockfast.stores.http.messages import Request
from lockfast.stores.lockserver.address import Address, parse
from lockfast.stores.lockserver.aio import AsyncHttpNetwork
from lockfast.stores.lockserver.network import HttpNetwork
from lockfast.stores.lockserver.store import ServerStore
from lockfast.stores.registry import parse_url
from tests.servers.etcd import EtcdCluster
from tests.servers.redis import RedisServer, binaries

SEND_MS = 60_000
PAIRS_PER_ROUND = 100
TTL_MS = 600_000


@dataclass(frozen=True)
class ServerPlan:
    rounds: int = 10
    holders: int = 1000
    waiting_per_holder: int = 10
    handovers: int = 200


QUICK = ServerPlan(rounds=3, holders=100, handovers=50)


class Served:
    """`lockfast serve` in its own process."""

    def __init__(self, directory: str, store: str = "memory://") -> None:
        command = [sys.executable, "-m", "lockfast", "serve", "--store", store]
        command += ["--listen", "127.0.0.1:0", "--state-dir", f"{directory}/state"]
        self.process = subprocess.Popen(
            [*command, "--insecure-dev"], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.url = self.process.stderr.readline().split()[-1]

    def address(self) -> Address:
        return parse(parse_url(self.url))

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def pairs(served: Served, rounds: int) -> tuple[Summary, Summary]:
    """Measure the milliseconds of enter and leave, and of two bare requests, in turn."""
    address = served.address()
    wire = ServerStore(address).caller_wire()
    bare = HttpNetwork(address).caller_transport()
    place = (c.Place("lock", "a", "exclusive"),)
    run(wire.send(c.Open("bench", TTL_MS, "bench"), SEND_MS))
    request = Request("/healthz", b"", (), "GET")
    locked, asked, n = [], [], 0
    for _ in range(rounds):
        for _ in range(PAIRS_PER_ROUND):
            n += 1
            began = time.perf_counter()
            run(wire.send(c.Enter("bench", n, place), SEND_MS))
            run(wire.send(c.Leave("bench", n, place), SEND_MS))
            locked.append((time.perf_counter() - began) * 1000)
        for _ in range(PAIRS_PER_ROUND):
            began = time.perf_counter()
            run(bare.ask(request, SEND_MS))
            run(bare.ask(request, SEND_MS))
            asked.append((time.perf_counter() - began) * 1000)
    wire.close()
    bare.close()
    return summary(locked), summary(asked)


def etcd_pairs(rounds: int) -> Summary:
    """Measure the milliseconds of a lock and an unlock through the lock API of one etcd node."""
    with EtcdCluster(1) as cluster:
        member = Member("127.0.0.1", cluster.members[0].port)
        until = time.monotonic() + SEND_MS / 1000
        connection = Connection(Members("etcd", [member]), member, until)

        def call(path: str, body: dict[str, str]) -> dict[str, str]:
            request = Request(path, json.dumps(body).encode()).packed(str(member))
            reply: dict[str, str] = json.loads(connection.exchange(request, until).body)
            return reply

        lease = call("/v3/lease/grant", {"TTL": str(TTL_MS // 1000)})["ID"]
        name, took = b64encode(b"a").decode(), []
        for _ in range(rounds * PAIRS_PER_ROUND):
            began = time.perf_counter()
            key = call("/v3/lock/lock", {"name": name, "lease": lease})["key"]
            call("/v3/lock/unlock", {"key": key})
            took.append((time.perf_counter() - began) * 1000)
        connection.close()
    return summary(took)


def handovers(holder: Served, waiter: Served, rounds: int) -> Summary:
    """Measure the milliseconds from a release at one server to the grant at another's client."""
    took: list[float] = []
    with (
        lockfast.connect(holder.url, ttl=60) as first,
        lockfast.connect(waiter.url, ttl=60) as second,
    ):
        for _ in range(rounds):
            lease = first.lock("handover").acquire()
            granted: list[float] = []

            def take(granted: list[float] = granted) -> None:
                with second.lock("handover"):
                    granted.append(time.perf_counter())

            thread = threading.Thread(target=take)
            thread.start()
            while not first.inspect("handover").waiting_count:
                time.sleep(0.001)
            released = time.perf_counter()
            lease.release()
            thread.join()
            took.append((granted[0] - released) * 1000)
    return summary(took)


async def crowd(served: Served, plan: ServerPlan) -> tuple[Summary, float]:
    """Measure the milliseconds from a release to the next grant, and the server's CPU seconds."""
    address = served.address()
    wire = ServerStore(address, AsyncHttpNetwork(address)).caller_wire()
    host, _, port = served.url.partition("://")[2].partition(":")
    gate = asyncio.Semaphore(64)

    def place(at: int) -> tuple[c.Place, ...]:
        return (c.Place("lock", f"crowd/{at}", "exclusive"),)

    async def enter(at: int) -> None:
        """Let session `at` open and acquire its own lock."""
        async with gate:
            opening = c.Open(f"c{at}", TTL_MS, "bench")
            await wire.send(c.Enter(f"c{at}", 1, place(at), open=opening), SEND_MS)

    async def wait(at: int) -> None:
        async with gate:
            for n in range(2, 2 + plan.waiting_per_holder):
                neighbour = (at + n - 1) % plan.holders
                await wire.send(c.Enter(f"c{at}", n, place(neighbour)), SEND_MS)

    granted: dict[int, asyncio.Future[float]] = {}
    """By the number of the lock."""
    writers: list[asyncio.StreamWriter] = []

    async def listen(at: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            head = f"GET /v1/sessions/c{at}/wakes HTTP/1.1\r\nHost: localhost\r\n"
            writer.write((head + "Accept: application/x-ndjson\r\n\r\n").encode())
            while b"missed" not in await reader.readline():
                pass

        async def follow() -> None:
            while line := await reader.readline():
                if line.startswith(b'{"what":"granted"'):
                    lock = (at + json.loads(line)["n"] - 1) % plan.holders
                    found = granted.pop(lock, None)
                    if found is not None and not found.done():
                        found.set_result(time.perf_counter())

        following.append(asyncio.create_task(follow()))

    following: list[asyncio.Task[None]] = []
    everybody = range(plan.holders)
    await asyncio.gather(*map(enter, everybody))
    await asyncio.gather(*map(listen, everybody))
    await asyncio.gather(*map(wait, everybody))
    took, cpu_s = [], served.cpu_s()
    for at in range(plan.handovers):
        lock = at % plan.holders
        heard = granted[lock] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await wire.send(c.Leave(f"c{lock}", 1, place(lock)), SEND_MS)
        took.append((await heard - began) * 1000)
    cpu_s = served.cpu_s() - cpu_s
    for task in following:
        task.cancel()
    for writer in writers:
        writer.close()
    wire.close()
    return summary(took), cpu_s


def run_server(plan: ServerPlan) -> int:
    """Measure the server and print the figures."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection per client
    with tempfile.TemporaryDirectory(prefix="lockfast-bench-") as directory:
        served = Served(directory)
        try:
            locked, asked = pairs(served, plan.rounds)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            print(
                f"pair through the server  median {locked.median:7.2f} ms  p99 {locked.p99:7.2f} ms"
            )
            print(
                f"two bare requests        median {asked.median:7.2f} ms  p99 {asked.p99:7.2f} ms"
            )
            print(f"ratio of medians         {locked.median / asked.median:.2f} (aim: at most 1.6)")
            waiting = plan.holders * plan.waiting_per_holder
            print(f"\n{plan.holders} clients hold, {waiting} claims wait:", flush=True)
            before_s, before_mb = served.cpu_s(), served.resident_mb()
            handover, cpu_s = asyncio.run(crowd(served, plan))
            print(f"hand-over  median {handover.median:7.2f} ms  p99 {handover.p99:7.2f} ms")
            entering_s = served.cpu_s() - before_s - cpu_s
            print(
                f"server CPU: {cpu_s / max(1, handover.count) * 1000:.2f} ms per hand-over, "
                f"{entering_s / (plan.holders + waiting) * 1000:.2f} ms per claim that enters"
            )
            print(f"server memory: {before_mb:.0f} → {served.resident_mb():.0f} MB resident")
        finally:
            served.close()
        compare(directory, plan, locked)
    return 0


def compare(directory: str, plan: ServerPlan, locked: Summary) -> None:
    """Measure the other arrangements and print the figures."""
    etcd = etcd_pairs(plan.rounds)
    print(f"\npair by etcd's lock API  median {etcd.median:7.2f} ms  p99 {etcd.p99:7.2f} ms")
    print(f"the server takes {locked.median / etcd.median:.2f} × as long (memory, not a disk)")
    with RedisServer(binaries()["wheel"]) as redis, ExitStack() as stack:
        url = redis.url()
        one, two = (stack.enter_context(closing(Served(directory, url))) for _ in range(2))
        near, far = handovers(one, one, plan.handovers), handovers(one, two, plan.handovers)
    print("\nhand-over between two clients, over Redis:")
    print(f"of one server   median {near.median:7.2f} ms  p99 {near.p99:7.2f} ms")
    print(f"of two servers  median {far.median:7.2f} ms  p99 {far.p99:7.2f} ms", end="")
    print(f"  {far.median / near.median:.2f} × (aim: at most 2)")
