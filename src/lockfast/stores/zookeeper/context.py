"""What all steps of one store share: its context, requests to a link, and the base of tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from lockfast.core.rows import Session
from lockfast.errors import AccessDeniedError, StoreBusyError, StoreUnavailableError
from lockfast.stores.derived.steps import Instant
from lockfast.stores.derived.stored import decode
from lockfast.stores.derived.turns import Turn, Turns
from lockfast.stores.derived.view import Name
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.clock import LeadersClock
from lockfast.stores.zookeeper.layout import Base, Bucket, Document, Paths, Sizes
from lockfast.stores.zookeeper.links import Links
from lockfast.stores.zookeeper.loaded import Loaded
from lockfast.stores.zookeeper.owned import OwnSessions
from lockfast.stores.zookeeper.transport import (
    BAD_VERSION,
    NO_AUTH,
    NO_NODE,
    NODE_EXISTS,
    NOT_EMPTY,
    Answer,
    Create,
    Flight,
    Get,
    Link,
    Multi,
    Network,
    Request,
    Set,
    Stat,
    Waiting,
)

KNOWN_MAX: Final = 4096
READS_MAX: Final = 500
LAG_US: Final = 1_000_000
"""Raise the base of tokens when it lags this far behind the wall clock."""
CONFLICTS: Final = (NO_NODE, NODE_EXISTS, BAD_VERSION, NOT_EMPTY)


@dataclass
class Crowd:
    """How many claims are in a bucket."""

    counted: int = 0
    """As last read."""
    sent: int = 0
    """Claims that this client has sent there since."""
    last: str = ""
    """The highest rank there, as last read."""

    def counted_in(self, one: Loaded, bucket: Bucket) -> None:
        """Record what was read of the bucket."""
        queued = one.queued[bucket.node]
        self.counted, self.sent = len(one.below.get(bucket.node, ())), 0
        self.last = queued[-1].rank if queued else bucket.start

    def is_full(self, sizes: Sizes) -> bool:
        return self.counted + self.sent >= sizes.bucket_max


class Context:
    """State shared by all steps of one store."""

    def __init__(self, label: str, network: Network, paths: Paths, sizes: Sizes) -> None:
        self.label = label
        self.network = network
        self.paths = paths
        self.sizes = sizes
        self.start()
        self.base: tuple[Base, int] | None = None
        """The base of tokens as last read, and its version."""
        self.zxid = 0
        """The zxid of the last answer to a write. Not the highest: if an ensemble loses its data,
        zxids begin again."""
        self.clock = LeadersClock(network.wall_us() // 1000 - network.now_ms())
        self.known: OrderedDict[Name, Loaded] = OrderedDict()
        """Resources as our own last step left them, or as we have read or heard since."""
        self.sessions: set[str] | None = None
        """The sessions that readers of the log have seen, as sessions or in events."""
        self.search_due_ms = 0
        """When a reader of the log compares them again."""
        self.crowds: OrderedDict[str, Crowd] = OrderedDict()
        """The buckets that claims of this client join."""

    def start(self) -> None:
        """Begin without sessions and links, in a new store object or in a forked child."""
        self.own = OwnSessions(self.network)
        self.links = Links(self.label, self.network, self.own)
        self.turns = Turns(self.network)

    def instant(self) -> Instant:
        """Read the clocks."""
        return Instant(self.clock.at_least_ms(self.network.now_ms()), self.network.wall_us())

    def heard(self, stat: Stat, sent_ms: int) -> None:
        """Record the leader's clock and the zxid from the answer to a write sent at `sent_ms`."""
        # Another leader has another clock.
        is_first = stat.mzxid >> 32 != self.zxid >> 32
        self.clock.heard(stat.mtime_ms, sent_ms, self.network.now_ms(), is_first=is_first)
        self.zxid = stat.mzxid

    def learned(self, name: Name, version: int, document: Document) -> None:
        """Keep a document that another process has written and sent, for our next step.

        Its entries count as alive. That suffices: a multi requires the node of each claim it
        grants.
        """
        known = self.known.get(name)
        if known is not None and known.version >= version:
            return
        nodes = [entry.node.partition("/")[0] for entry in document.entries.values()]
        nodes += [bucket.node for bucket in document.buckets]
        children = frozenset([*nodes, document.marker] if document.marker else nodes)
        one = Loaded(*name, self.paths.resource(*name), True, version, children, document)
        one.seen_ms = self.network.now_ms()
        remember(self.known, name, one)

    def crowd(self, bucket: str) -> Crowd:
        """Return what is known of the claims in a bucket."""
        found = self.crowds.get(bucket)
        if found is None:
            found = Crowd()
            remember(self.crowds, bucket, found)
        return found


def remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory.pop(key, None)
    memory[key] = value
    while len(memory) > KNOWN_MAX:
        memory.popitem(last=False)


class Requests:
    """Requests to one link within a deadline; unexpected errors are raised."""

    def __init__(
        self,
        context: Context,
        link: Link,
        waiting: Waiting,
        until_ms: int,
        *,
        takes_turns: bool = False,
    ) -> None:
        """`takes_turns`: whether they are those of a caller, whose steps take turns."""
        self.context = context
        self.link = link
        self.waiting = waiting
        self.until_ms = until_ms
        self._takes_turns = takes_turns
        self._was_answered = False
        self._sent_ms = 0

    def turn(self, names: Sequence[Name], *, goes_first: bool) -> Turn | None:
        """Return the turn of a caller's step at the first of its resources."""
        if not names or not self._takes_turns:
            return None
        signal, until_ms = self.waiting.signal, self.until_ms
        return Turn(self.context.turns, names[0], signal, until_ms, goes_first=goes_first)

    async def pause(self, span_ms: int) -> None:
        await self.waiting.signal().wait(span_ms)

    async def call(self, *requests: Request) -> Sequence[Answer]:
        found: list[Answer] = []
        for at in range(0, len(requests), READS_MAX):
            found += await self.finish(self.submit(requests[at : at + READS_MAX]))
        return found

    def submit(self, requests: Sequence[Request]) -> Flight:
        """Send requests, at most READS_MAX, without waiting."""
        if self.until_ms <= self.context.network.now_ms():
            # A store that has answered works: the time was spent on waiting for other steps.
            error = StoreBusyError if self._was_answered else StoreUnavailableError
            raise error(self.context.label, "there was no time left to ask it")
        self._sent_ms = self.context.network.now_ms()
        return self.link.submit(requests)

    async def finish(self, flight: Flight) -> Sequence[Answer]:
        """Wait for the answers to requests that were sent."""
        left_ms = max(1, self.until_ms - self.context.network.now_ms())
        found = await self.waiting.wait(flight, left_ms)
        self._was_answered = True
        for answer in found:
            if answer.error == NO_AUTH:
                raise AccessDeniedError(
                    self.context.label,
                    "denied access to a node",
                    "give the user all rights below the chroot, or name the right credentials",
                )
            if answer.error and answer.error not in CONFLICTS:
                raise StoreUnavailableError(self.context.label, f"answered {answer.error}")
            for stat in answer.stats:
                if stat is not None:
                    self.context.heard(stat, self._sent_ms)
        return found


async def read_base(requests: Requests) -> None:
    """Read the base of tokens; create the namespace if it is new."""
    context = requests.context
    paths, label = context.paths, context.label
    while True:
        (answer,) = await requests.call(Get(paths.base))
        if not answer.error:
            assert answer.stat is not None
            context.base = (k.base_from(label, decode(answer.data)), answer.stat.version)
            return
        await make_namespace(requests)


async def raise_base(requests: Requests, lag_us: int = LAG_US) -> int:
    """Raise the base so that tokens do not lag the wall clock, even after a loss of data.

    Return by how much it was raised.
    """
    context = requests.context
    while True:
        await read_base(requests)
        assert context.base is not None
        base, version = context.base
        raised = base.raised(context.zxid, context.instant().wall_us)
        if raised.step == base.step and raised.value <= base.value + lag_us:
            return 0
        setting = Set(context.paths.base, k.data_of(list(raised)), version)
        (answer,) = await requests.call(Multi((setting,)))
        if not answer.error:
            context.base = raised, version + 1
            return raised.value - base.value


async def make_namespace(requests: Requests) -> None:
    paths = requests.context.paths
    above = paths.root.split("/")[1:]
    nodes = ["/" + "/".join(above[: i + 1]) for i in range(len(above))]
    creates = [Create(path) for path in (*nodes, *paths.directories)]
    await requests.call(*creates, Create(paths.base, k.data_of(list(Base(0, 0)))))


async def read_session(requests: Requests, session: str) -> Session | None:
    """Return a session of any process as its nodes show it; None if there is none."""
    return (await read_sessions(requests, [session]))[0]


async def read_sessions(requests: Requests, sessions: Sequence[str]) -> list[Session | None]:
    paths, instant = requests.context.paths, requests.context.instant()
    reads: list[Request] = []
    for session in sessions:
        reads += [Get(paths.session(session)), Get(paths.alive_of(session))]
    answers = await requests.call(*reads)
    return [
        _session_from(session, answers[2 * i], answers[2 * i + 1], instant)
        for i, session in enumerate(sessions)
    ]


def _session_from(session: str, node: Answer, alive: Answer, instant: Instant) -> Session | None:
    if node.error:
        return None
    record = k.record_from(node.data)
    renewals, renewed_ms = k.alive_from(alive.data) if not alive.error else (0, instant.now_ms)
    return record.row(session, instant.deadline_ms(renewed_ms + record.ttl_ms), renewals)
