"""The replicated state of a ZooKeeper ensemble: a tree of nodes, and the sessions that own some.

Written from ZooKeeper's documentation, independently of the store that runs on it. One `State` is
what a majority has agreed on; requests are applied to it in the order of their zxids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lockfast.stores.zookeeper import transport as t
from lockfast.stores.zookeeper.transport import Answer, Stat


@dataclass
class Node:
    data: bytes
    czxid: int
    mzxid: int
    mtime_ms: int
    owner: int = 0
    """The session of an ephemeral node."""
    is_container: bool = False
    version: int = 0
    children: set[str] = field(default_factory=set)
    created: int = 0
    """How many children were created."""

    def stat(self) -> Stat:
        return Stat(self.mzxid, self.mtime_ms, self.version, len(self.children), self.czxid)

    def copy(self) -> Node:
        return Node(
            self.data, self.czxid, self.mzxid, self.mtime_ms, self.owner, self.is_container,
            self.version, set(self.children), self.created,
        )  # fmt: skip


class _Failed(Exception):
    def __init__(self, error: str) -> None:
        self.error = error


Fired = Callable[[int, str], None]
"""Called with a session and the path of a node it watched."""


class State:
    def __init__(self, fired: Fired) -> None:
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0, 0)}
        self.zxid = 1 << 32
        self.sessions: set[int] = set()
        self._fired = fired
        self._watches: dict[str, set[int]] = {}
        self._undo: dict[str, Node | None] = {}

    # ── sessions ─────────────────────────────────────────────────────────────────────

    def open(self, session: int) -> None:
        self.zxid += 1
        self.sessions.add(session)

    def end(self, session: int) -> None:
        """All ephemeral nodes of a session vanish in one step."""
        if session not in self.sessions:
            return
        self.sessions.discard(session)
        self.zxid += 1
        for path in sorted(path for path, node in self.nodes.items() if node.owner == session):
            self._remove(path)
        self.forget_watches(session)

    def forget_watches(self, session: int) -> None:
        for watching in self._watches.values():
            watching.discard(session)

    def elect(self) -> None:
        """A new leader: a new epoch in the high half of the zxid."""
        self.zxid = ((self.zxid >> 32) + 1) << 32

    def reap_containers(self) -> None:
        """Delete containers whose children are all gone, as the leader does now and then."""
        for path in sorted(self.nodes, reverse=True):
            node = self.nodes[path]
            if node.is_container and node.created and not node.children:
                self.zxid += 1
                self._remove(path)

    # ── requests ─────────────────────────────────────────────────────────────────────

    def apply(self, session: int, request: t.Request, now_ms: int) -> Answer:
        if isinstance(request, t.Sync):
            return Answer()
        if isinstance(request, t.Get | t.Exists | t.Children):
            return self._read(session, request)
        self.zxid += 1
        operations = request.operations if isinstance(request, t.Multi) else (request,)
        return self._write(session, operations, now_ms)

    def _read(self, session: int, request: t.Get | t.Exists | t.Children) -> Answer:
        node = self.nodes.get(request.path)
        watches = getattr(request, "watch", False)
        if watches and (node is not None or isinstance(request, t.Exists)):
            self._watches.setdefault(request.path, set()).add(session)
        if node is None:
            return Answer() if isinstance(request, t.Exists) else Answer(t.NO_NODE)
        if isinstance(request, t.Children):
            return Answer(stat=node.stat(), children=tuple(sorted(node.children)))
        data = node.data if isinstance(request, t.Get) else b""
        return Answer("", data, node.stat())

    def _write(self, session: int, operations: Iterable[t.Operation], now_ms: int) -> Answer:
        self._undo = {}
        stats: list[Stat | None] = []
        changed: list[str] = []
        numbered: list[str] = []
        try:
            for asked in operations:
                operation = self._numbered(asked)
                stats.append(self._operate(session, operation, now_ms))
                if operation is not asked:
                    numbered.append(operation.path.rpartition("/")[2])
                if not isinstance(operation, t.Check):
                    changed.append(operation.path)
        except _Failed as failed:
            for path, node in self._undo.items():
                if node is None:
                    self.nodes.pop(path, None)
                else:
                    self.nodes[path] = node
            return Answer(failed.error, failed=len(stats))
        for path in changed:
            self._fire(path)
        return Answer("", stats=tuple(stats), numbered=tuple(numbered))

    def _numbered(self, operation: t.Operation) -> t.Operation:
        """Return an operation with the sequence number that the server appends to its path."""
        if not isinstance(operation, t.Create) or not operation.sequence:
            return operation
        parent = self.nodes.get(_parent(operation.path))
        number = parent.created if parent is not None else 0
        return operation._replace(path=f"{operation.path}{number:010}")

    def _operate(self, session: int, operation: t.Operation, now_ms: int) -> Stat | None:
        path = operation.path
        if isinstance(operation, t.Create):
            self._create(session, operation, now_ms)
            return None
        node = self.nodes.get(path)
        if node is None:
            raise _Failed(t.NO_NODE)
        wanted = operation.version
        if wanted not in (-1, node.version):
            raise _Failed(t.BAD_VERSION)
        if isinstance(operation, t.Check):
            return None
        if isinstance(operation, t.Delete):
            if node.children:
                raise _Failed(t.NOT_EMPTY)
            self._keep(path)
            self._keep(_parent(path))
            self.nodes[_parent(path)].children.discard(path.rpartition("/")[2])
            del self.nodes[path]
            return None
        self._keep(path)
        node = self.nodes[path]
        node.data, node.version = operation.data, node.version + 1
        node.mzxid, node.mtime_ms = self.zxid, now_ms
        return node.stat()

    def _create(self, session: int, operation: t.Create, now_ms: int) -> None:
        path = operation.path
        parent = self.nodes.get(_parent(path))
        if parent is None:
            raise _Failed(t.NO_NODE)
        if path in self.nodes:
            raise _Failed(t.NODE_EXISTS)
        if parent.owner:
            raise _Failed(t.OTHER)  # an ephemeral node has no children
        self._keep(path)
        self._keep(_parent(path))
        parent = self.nodes[_parent(path)]
        parent.children.add(path.rpartition("/")[2])
        parent.created += 1
        owner = session if operation.ephemeral else 0
        self.nodes[path] = Node(
            operation.data, self.zxid, self.zxid, now_ms, owner, operation.container
        )

    def _keep(self, path: str) -> None:
        """Remember a node as it was before this write, and go on with a copy."""
        if path not in self._undo:
            node = self.nodes.get(path)
            self._undo[path] = node
            if node is not None:
                self.nodes[path] = node.copy()

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        self.nodes[_parent(path)].children.discard(path.rpartition("/")[2])
        self._fire(path)

    def _fire(self, path: str) -> None:
        for session in sorted(self._watches.pop(path, ())):
            self._fired(session, path)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
