"""The simulator's ZooKeeper answers as a real server does, on random requests of two sessions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import pytest

from lockfast.runtimes.threads import run
from lockfast.sim.zookeeper.state import State
from lockfast.stores.registry import parse_url
from lockfast.stores.zookeeper import transport as t
from lockfast.stores.zookeeper.address import parse
from lockfast.stores.zookeeper.network import KazooLink, KazooNetwork
from lockfast.stores.zookeeper.transport import Answer, Request
from tests.servers.zookeeper import ZooKeeperEnsemble

REQUESTS = 400
NAMES = ("a", "b", "a/x", "a/y", "b/x", "a/x/1")
PATIENCE_MS = 30_000


class Server:
    """Two sessions at a real server, and the watches of each that have fired."""

    def __init__(self, node: ZooKeeperEnsemble) -> None:
        self._network = KazooNetwork(parse(parse_url(node.url())))
        self.fired: list[list[str]] = [[], []]
        self._links: list[KazooLink] = []
        for fired in self.fired:
            link = self._network.link(PATIENCE_MS, fired.append, lambda: None, pings=True)
            run(self._network.keeper.wait(link.open(), PATIENCE_MS))
            self._links.append(link)

    def ask(self, session: int, request: Request) -> Answer:
        flight = self._links[session].submit([request])
        (answer,) = run(self._network.keeper.wait(flight, PATIENCE_MS))
        return answer

    def until_fired(self, count: int) -> None:
        """Wait until as many watches have fired, if they do."""
        give_up_s = time.monotonic() + PATIENCE_MS / 1000
        while sum(map(len, self.fired)) < count and time.monotonic() < give_up_s:
            time.sleep(0.005)

    def end(self, session: int) -> None:
        self._links[session].close()

    def close(self) -> None:
        for link in self._links:
            link.close()


class Modelled:
    """The same for the model."""

    def __init__(self) -> None:
        self.fired: list[list[str]] = [[], []]
        # The model's sessions are numbered from 1; 0 owns nodes that are not ephemeral.
        self._state = State(lambda number, path: self.fired[number - 1].append(path))
        for number in (1, 2):
            self._state.open(number)

    def ask(self, session: int, request: Request) -> Answer:
        return self._state.apply(session + 1, request, 0)

    def end(self, session: int) -> None:
        self._state.end(session + 1)


@pytest.fixture
def server(node: ZooKeeperEnsemble) -> Iterator[Server]:
    opened = Server(node)
    yield opened
    opened.close()


def requests(rng: random.Random, root: str) -> Iterator[tuple[int, Request]]:
    """Yield random requests, each with the session that sends it."""
    while True:
        yield rng.randrange(2), _request(rng, root)


def _request(rng: random.Random, root: str) -> Request:
    path = f"{root}/{rng.choice(NAMES)}"
    kind = rng.random()
    if kind < 0.15:
        return t.Get(path, watch=rng.random() < 0.5)
    if kind < 0.25:
        return t.Exists(path, watch=rng.random() < 0.5)
    if kind < 0.35:
        return t.Children(path)
    operation = _operation(rng, root)
    if kind < 0.6 and not isinstance(operation, t.Check):
        return operation
    return t.Multi((operation, *(_operation(rng, root) for _ in range(rng.randrange(4)))))


def _operation(rng: random.Random, root: str) -> t.Operation:
    path, version = f"{root}/{rng.choice(NAMES)}", rng.choice((-1, -1, 0, 1))
    kind = rng.random()
    if kind < 0.45:
        return t.Create(
            path, rng.randbytes(3), ephemeral=rng.random() < 0.3, sequence=rng.random() < 0.2
        )
    if kind < 0.6:
        return t.Delete(path, version)
    if kind < 0.85:
        return t.Set(path, rng.randbytes(3), version)
    return t.Check(path, version)


def comparable(answer: Answer) -> Answer:
    """Leave out what has another origin: zxids and clocks."""

    def stripped(stat: t.Stat | None) -> t.Stat | None:
        return None if stat is None else stat._replace(mzxid=0, mtime_ms=0, czxid=0)

    return answer._replace(
        stat=stripped(answer.stat),
        children=tuple(sorted(answer.children)),
        stats=tuple(map(stripped, answer.stats)),
    )


def seen(one: Server | Modelled, root: str) -> Sequence[Answer]:
    """Read every node that requests may concern."""
    paths = [root, *(f"{root}/{name}" for name in NAMES)]
    reads = [read(path) for path in paths for read in (t.Get, t.Children)]
    return [comparable(one.ask(0, read)) for read in reads]


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_are_answered_alike(server: Server, seed: int) -> None:
    rng, root, model = random.Random(seed), f"/model-{seed}", Modelled()
    assert server.ask(0, t.Create(root)).error == model.ask(0, t.Create(root)).error == ""
    errors = set()
    for number, (session, request) in zip(range(REQUESTS), requests(rng, root), strict=False):
        told = comparable(server.ask(session, request))
        assert told == comparable(model.ask(session, request)), (seed, number, request)
        errors.add(told.error)
    assert errors >= {"", t.NO_NODE, t.NODE_EXISTS, t.BAD_VERSION, t.NOT_EMPTY}
    assert seen(server, root) == seen(model, root)
    # Events precede the answers to later requests, but kazoo passes them on in another thread.
    server.until_fired(sum(map(len, model.fired)))
    assert server.fired == model.fired


def test_ephemeral_nodes_end_with_their_session_alone(server: Server) -> None:
    model, root = Modelled(), "/model-ends"
    for one in (server, model):
        one.ask(0, t.Create(root))
        one.ask(1, t.Create(f"{root}/a", ephemeral=True))
        one.ask(0, t.Create(f"{root}/b", ephemeral=True))
        assert one.ask(0, t.Exists(f"{root}/a", watch=True)).stat is not None
    server.end(1)
    model.end(1)
    server.until_fired(1)
    assert server.fired[0] == model.fired[0] == [f"{root}/a"]
    assert seen(server, root) == seen(model, root)


def test_zxids_rise_with_every_write(server: Server) -> None:
    model, root = Modelled(), "/model-zxids"
    for one in (server, model):
        one.ask(0, t.Create(root))
        marks = []
        for session in (0, 1, 0):
            stat = one.ask(session, t.Multi((t.Set(root, b""),))).stats[0]
            assert stat is not None
            marks.append(stat.mzxid)
        assert marks == sorted(set(marks))
