"""Check that no release leaves a lock without a holder while live claims wait for it.

Whoever removes an exclusive holder grants the lock to the first claim in the queue, in the same
transaction. Keep-alives settle the queues in which their sessions wait, so a client that forgets
it delays its successors and breaks no other promise.

Two cases are not checked. The end of a lease leaves a queue without a holder until its first
waiter notices. And of two readers or permits that are released at the same moment, each sees the
other one as a holder; again the first waiter settles the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lockfast.core.modes import EXCLUSIVE
from lockfast.sim.etcd.mvcc import Event, Kv
from lockfast.sim.etcd.state import State
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.requests import Kv as StoredKv


class HandOvers:
    """Examines the changes of each transaction, under the common root of all keys."""

    def __init__(self, state: State, root: str) -> None:
        self._mvcc = state.mvcc
        self._leases = state.leases
        self._root = root
        self._examined = state.mvcc.revision

    def forgotten(self) -> Iterator[str]:
        """Yield each lock that the latest transaction has left to nobody, as text."""
        revision = self._mvcc.revision
        if revision > self._examined:
            self._examined = revision
            for prefix in self._vacated(self._mvcc.changes(revision)):
                first = self._first_waiting(prefix)
                if first is not None:
                    yield f"nobody holds {prefix!r} although claim {first.key!r} waits for it"

    def _vacated(self, events: Iterable[Event]) -> Iterator[str]:
        for event in events:
            # What the end of a lease deletes had a lease that is gone.
            if event.former is None or not event.deleted or event.former.lease not in self._leases:
                continue
            key = event.kv.key.decode().removeprefix(self._root)
            if key[:1] == "n" and f"{k.SEP}h{k.SEP}{EXCLUSIVE}{k.SEP}" in key:
                place = k.parse_place(key)
                yield k.resource_prefix(place.kind, place.name)

    def _first_waiting(self, prefix: str) -> Kv | None:
        """Return the claim that should hold the lock; None if there is none or it may not."""
        stored = self._range(prefix, k.end_of(prefix))
        places = [k.parse_place(kv.key.decode().removeprefix(self._root)) for kv in stored]
        # Held, reserved, or closed; a limit that was changed (e) does not keep claims out.
        if any(place.line not in "we" for place in places):
            return None
        for kv, place in zip(stored, places, strict=True):
            if place.line == "w" and self._range(k.session_key(place.session)):
                claim, _ = k.claim_from(place, StoredKv(kv.key.decode(), kv.value.decode(), kv.mod))
                return kv if len(claim.places) == 1 else None
        return None

    def _range(self, start: str, stop: str = "") -> list[Kv]:
        end = f"{self._root}{stop}".encode() if stop else b""
        return self._mvcc.range(f"{self._root}{start}".encode(), end)
