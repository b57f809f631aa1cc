"""The simulator's etcd answers like a real server, on random requests."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockfast.sim.etcd.gateway import Gateway
from lockfast.sim.etcd.state import State
from lockfast.sim.etcd.watches import Watches
from lockfast.sim.etcd.wire import EtcdError
from tests.servers.etcd import EtcdCluster
from tests.sim.etcd_requests import Json, Requests, text

SEEDS = range(2)
REQUESTS = 500
WATCHES = 15


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Modelled]]:
    """A real server and the model, both in the state that earlier tests left."""
    with EtcdCluster() as cluster:
        server = Server(cluster.members[0].port)
        yield server, Modelled()
        server.close()


class Server:
    """One connection to a real member."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def call(self, path: str, body: Json) -> tuple[int, Any]:
        self._connection.request("POST", path, json.dumps(body))
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    @contextmanager
    def watch(self, *create: Json) -> Iterator[Iterator[Json]]:
        """Return a stream with some watches; its lines as they arrive."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        asked = "\n".join(json.dumps({"create_request": one}) for one in create)
        try:
            connection.request("POST", "/v3/watch", asked)
            response = connection.getresponse()
            yield (json.loads(line) for line in response)
        finally:
            connection.close()

    def close(self) -> None:
        self._connection.close()


class Modelled:
    """The model behind the same method."""

    def __init__(self) -> None:
        self.state = State()
        self.gateway = Gateway(self.state, lambda: 0)

    def call(self, path: str, body: Json) -> tuple[int, Any]:
        try:
            answer = self.gateway.call(path, body)
        except EtcdError as error:
            return error.status, error.body()
        header = answer.get("result", answer)["header"]
        header.setdefault("revision", str(self.state.mvcc.revision))
        return 200, answer


def plain(answer: Any, path: str) -> Any:
    """Return what the model must answer too: not who answered, nor how much time is left."""
    if "header" in answer.get("result", answer):
        for name in ("cluster_id", "member_id", "raft_term"):
            answer.get("result", answer)["header"].pop(name, None)
    if path.endswith("timetolive") and answer.get("TTL", "-1") != "-1":
        answer["TTL"] = "left"
        answer.get("keys", []).sort()
    return answer


def told(lines: list[Json]) -> dict[str, list[Json]]:
    """Return all events by watch, in order, and how it ended.

    How many lines they arrive in, and which revision the header has, depends on the server's
    timing.
    """
    found: dict[str, list[Json]] = {}
    for line in lines:
        result = line["result"]
        about = found.setdefault(result.get("watch_id", "0"), [])
        about += result.get("events", [])
        about += [
            {n: result[n]} for n in ("created", "canceled", "compact_revision") if n in result
        ]
    return found


def until_told(lines: Iterator[Json], expected: list[Json]) -> list[Json]:
    """Return as many events and ends as expected, or what the server sends instead."""
    read: list[Json] = []
    lacking = sum(map(len, told(expected).values())) - 2
    while lacking > 0:
        try:
            read.append(next(lines))
        except TimeoutError:
            break
        lacking -= sum(map(len, told(read[-1:]).values()))
    return read


@pytest.mark.parametrize("seed", SEEDS)
def test_it_answers_as_the_server_does(pair: tuple[Server, Modelled], seed: int) -> None:
    server, model = pair
    requests = Requests(seed)
    kinds: set[tuple[str, int]] = set()
    for step in range(REQUESTS):
        requests.revision = model.state.mvcc.revision
        path, body = requests.next()
        asked = f"seed {seed}, request {step}: {path} {json.dumps(body)}"
        expected = server.call(path, body)
        found = model.call(path, body)
        assert found[0] == expected[0], f"{asked}\n{found}\n{expected}"
        assert plain(found[1], path) == plain(expected[1], path), asked
        kinds.add((path, expected[0]))
    assert len(kinds) >= 12, f"too few kinds of answers: {sorted(kinds)}"


@pytest.mark.parametrize("seed", SEEDS)
def test_its_watches_tell_what_the_servers_do(pair: tuple[Server, Modelled], seed: int) -> None:
    """The same events in the same order, from the past and from now on, or `compacted`."""
    server, model = pair
    requests = Requests(seed + 1000)
    rng = random.Random(f"watches {seed}")
    outcomes: set[str] = set()
    for number in range(WATCHES):
        for _ in range(8):
            path, body = requests.next()
            assert server.call(path, body)[0] == model.call(path, body)[0]
        now = requests.revision = model.state.mvcc.revision
        asked = {
            "key": text(rng.choice((b"a", b"a/1", b"b"))),
            "range_end": text(rng.choice((b"", b"b", b"c", b"\x00"))),
            "start_revision": str(max(0, now + rng.choice((-60, -9, -3, 0, 1, 4)))),
            "filters": rng.choice(([], ["NOPUT"], ["NODELETE"])),
            "prev_kv": rng.random() < 0.5,
        }
        marked = {"create_request": {"key": text(b"mark"), "watch_id": "77"}}
        modelled = Watches(model.state.mvcc)
        found = [*modelled.ask({"create_request": asked}, now), *modelled.ask(marked, now)]
        with server.watch(asked, marked["create_request"]) as lines:
            expected = [next(lines), next(lines)]
            found += modelled.catch_up(now)
            for path, body in [requests.next() for _ in range(8)]:
                if path.endswith("compaction"):
                    continue  # the server may not have processed the watch yet
                assert server.call(path, body)[0] == model.call(path, body)[0]
                found += modelled.tell(model.state.mvcc.revision)
            for side in (server, model):
                side.call("/v3/kv/put", {"key": text(b"mark")})
            found += modelled.tell(model.state.mvcc.revision)
            expected += until_told(lines, found)
        assert told(found) == told(expected), f"seed {seed}, watch {number}: {asked} at {now}"
        outcomes |= {name for line in found for name in line["result"]}
    assert {"created", "events", "canceled", "compact_revision"} <= outcomes
