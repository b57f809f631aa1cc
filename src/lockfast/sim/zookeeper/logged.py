"""Check the log of events that ZooKeeper's store writes.

The log is part of the writes that it reports, so it must tell the same story: nobody is granted
an exclusive lock before the end of every earlier holder was logged, no end is logged twice, and
the tokens of a lock rise. Worlds with an odd seed have a log from the beginning, as if it had a
reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockfast.core.commands import Event
from lockfast.core.modes import EXCLUSIVE
from lockfast.sim.zookeeper.state import State
from lockfast.stores.zookeeper import entries
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper import transport as t

ALWAYS_MS: Final = 1 << 50
ENDINGS: Final = ("released", "expired", "revoked")


class Logged:
    def __init__(self, state: State, root: str) -> None:
        """Begin a log in an empty namespace."""
        paths = k.Paths(root)
        base = k.Base(0, 0, log_until_ms=ALWAYS_MS, log_number=1)
        above = root.split("/")[1:]
        nodes = ["/" + "/".join(above[: i + 1]) for i in range(len(above))]
        creates = [t.Create(path) for path in (*nodes, *paths.directories, paths.log(1))]
        state.apply(0, t.Multi((*creates, t.Create(paths.base, k.data_of(list(base))))), 0)
        self._state = state
        self._paths = paths
        self._path = paths.log(1)
        self._examined = 0
        self._holders: dict[tuple[str, str], set[tuple[str, int]]] = {}
        self._tokens: dict[tuple[str, str], int] = {}

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong with the entries that were added since the last call."""
        while self._examined < self._state.nodes[self._path].created:
            node = self._state.nodes[f"{self._path}/{entries.PREFIX}{self._examined:010}"]
            for event in entries.events_from("log", node.data, node.stat(), 1, self._examined):
                if event.what == "granted":
                    self._forget(event, node.czxid)
                yield from self._examine(event)
            self._examined += 1

    def _forget(self, event: Event, zxid: int) -> None:
        """Forget dead holders of a resource that this write has created.

        The server has deleted it since they held it, because it had no node left.
        """
        nodes, paths = self._state.nodes, self._paths
        resource = nodes.get(paths.resource(event.kind, event.name))
        if resource is not None and resource.czxid == zxid:
            holders = self._holders.get((event.kind, event.name), set())
            holders -= {of for of in holders if paths.session(of[0]) not in nodes}

    def _examine(self, event: Event) -> Iterator[str]:
        name, of = (event.kind, event.name), (event.session, event.n)
        holders = self._holders.setdefault(name, set())
        if event.what == "granted":
            if event.mode == EXCLUSIVE and holders:
                yield f"{event} while {holders} hold it"
            if event.token <= self._tokens.get(name, 0):
                yield f"{event} after token {self._tokens[name]}"
            self._tokens[name] = event.token
            holders.add(of)
        elif event.what in ENDINGS:
            if of not in holders:
                yield f"{event}, but {holders} hold it"
            holders.discard(of)
