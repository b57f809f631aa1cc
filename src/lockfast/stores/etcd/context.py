"""What all connections and all commands of one store object share."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from lockfast.errors import StoreMisconfiguredError
from lockfast.stores.derived.turns import Turns
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.layout import KnownBase
from lockfast.stores.etcd.owned import OwnSessions
from lockfast.stores.etcd.requests import Keys
from lockfast.stores.etcd.transport import Json, Network

RESOURCES_MAX: Final = 10_000
MARKED_EVERY: Final = 32
"""Of the waiting claims that a client grants, one in so many marks the start of its queue."""


def lease_seconds(span_ms: int) -> int:
    """Return the TTL in seconds for a lease of at least `span_ms`; etcd counts whole seconds."""
    return max(1, ceil(span_ms / 1000))


class Context:
    """The address of the cluster, and what is known about it.

    None of it has to be up to date: each transaction compares what it relies on.
    """

    def __init__(self, address: Address, network: Network) -> None:
        self.label = address.label
        self.username = address.username
        self.password = address.password
        self.network = network
        self.keys = Keys(address.root, address.label)
        self.lease_s: Callable[[int], int] = lease_seconds
        self.token = ""
        """The user's authentication token, sent with every request; "" until it has been requested.
        """
        self.revision = 0
        """The highest revision seen in a reply."""
        self.base: KnownBase | None = None
        """The base of tokens as last read."""
        self.remembering: tuple[int, int] | None = None
        """The lease for tombstones, and when it was granted."""
        self.busy: dict[str, int] = {}
        """Resources believed to be held, and the number of claims waiting there."""
        self.starts: dict[str, str] = {}
        """Resources whose queue is known to have a start, and its rank."""
        self.marked_every = MARKED_EVERY
        self._since_mark = 0
        self._cluster_id: object = None
        self.start()

    def start(self) -> None:
        """Begin without sessions, in a new store object or in a forked child."""
        self.own = OwnSessions(self.network)
        self.turns = Turns(self.network)

    def learn(self, reply: Json) -> None:
        """Record a reply's header; raises StoreMisconfiguredError if another cluster replies."""
        header = reply.get("header")
        if not isinstance(header, dict):
            return
        found = header.get("cluster_id")
        if found and found != self._cluster_id:
            if self._cluster_id is not None:
                raise StoreMisconfiguredError(
                    self.label,
                    f"members of two clusters answer ({self._cluster_id} and {found})",
                    "name the members of one cluster only",
                )
            self._cluster_id = found
        self.revision = max(self.revision, self.keys.number(header, "revision"))

    def met(self, prefix: str, waiting: int) -> None:
        """Record that a resource is held, and how many claims wait there."""
        if len(self.busy) > RESOURCES_MAX:
            self.busy.clear()
        self.busy[prefix] = waiting

    def started(self, prefix: str, rank: str) -> None:
        """Record where a queue starts; "" if it has no start."""
        self.starts.pop(prefix, None)
        if len(self.starts) > RESOURCES_MAX:
            self.starts.clear()
        if rank:
            self.starts[prefix] = rank

    def marks_start(self) -> bool:
        """Count a grant of a waiting claim; return whether it marks the start of the queue."""
        self._since_mark = (self._since_mark + 1) % self.marked_every
        return self._since_mark == 0
