"""What a client knows of the keys at one revision: some keys and ranges, and nothing else."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, NamedTuple

from lockfast.stores.etcd.requests import Found, Kv
from lockfast.stores.etcd.rows import end_of

PAGE: Final = 32
"""As many rows of a resource are read at first; there seldom are more."""


class Want(NamedTuple):
    """A key, or (with `stop`) keys of a range, that has to be read."""

    start: str
    stop: str = ""
    limit: int = 0
    reverse: bool = False

    @staticmethod
    def resource(prefix: str) -> Want:
        """All rows of a resource, or the first of them."""
        return Want(prefix, end_of(prefix), PAGE)


class Missing(Exception):
    """A step needs to know more than it does."""

    def __init__(self, *wants: Want) -> None:
        self.wants = wants
        super().__init__(*wants)


class Knowledge:
    """Keys as they are, or are believed to be, at `revision`."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self.kvs: dict[str, Kv] = {}
        self.counts: dict[str, int] = {}
        """Of each resource read: how many rows it has."""
        self._order: list[str] = []
        self._spans: list[tuple[str, str]] = []

    def learn(self, want: Want, found: Found) -> None:
        """Take over what a read has found."""
        for kv in found.kvs:
            self.add(kv)
        start, stop = want.start, want.stop
        if not stop:
            self.assume(start)
            return
        if found.more:
            last = found.kvs[-1].key
            start, stop = (last, stop) if want.reverse else (start, f"{last}\x00")
        self._spans.append((start, stop))
        if want == Want.resource(want.start):
            self.counts[want.start] = found.count

    def assume(self, *keys: str) -> None:
        """Take keys that are not known to be there for absent."""
        self._spans.extend((key, f"{key}\x00") for key in keys)

    def add(self, kv: Kv) -> None:
        if kv.key not in self.kvs:
            insort(self._order, kv.key)
        self.kvs[kv.key] = kv

    def remove(self, key: str) -> None:
        if self.kvs.pop(key, None) is not None:
            del self._order[bisect_left(self._order, key)]

    def get(self, key: str) -> Kv | None:
        """The key as stored, None if it is known not to be; raises Missing."""
        found = self.kvs.get(key)
        if found is None and not self.knows(key):
            raise Missing(Want(key))
        return found

    def knows(self, key: str) -> bool:
        return key in self.kvs or any(start <= key < stop for start, stop in self._spans)

    def mod(self, key: str) -> int:
        """The revision that wrote a key; 0 if it is not there."""
        found = self.kvs.get(key)
        return found.mod if found is not None else 0

    def known_up_to(self, start: str, stop: str) -> str:
        """From `start` on everything is known up to here, at most `stop`."""
        at = start
        while at < stop:
            ends = [end for begin, end in self._spans if begin <= at < end]
            if not ends:
                break
            at = max(ends)
        return min(at, stop)

    def known_down_to(self, start: str, stop: str) -> str:
        at = stop
        while at > start:
            begins = [begin for begin, end in self._spans if begin < at <= end]
            if not begins:
                break
            at = min(begins)
        return max(at, start)

    def between(self, start: str, stop: str) -> list[str]:
        """Keys known to be there, in order."""
        order = self._order
        return order[bisect_left(order, start) : bisect_left(order, stop)]

    def part(self, prefixes: tuple[str, ...]) -> Knowledge:
        """What is known of some resources alone."""
        other = Knowledge(self.revision)
        for prefix in prefixes:
            stop = end_of(prefix)
            for key in self.between(prefix, stop):
                other.add(self.kvs[key])
            other._spans.append((prefix, self.known_up_to(prefix, stop)))
            other.counts[prefix] = self.counts.get(prefix, 0)
        return other
