"""Check that no release leaves a lock without a holder while live claims wait for it.

Whoever removes the last holder grants the lock to the first claim in the queue, in the same
transaction. Keep-alives settle the queues in which their sessions wait, so a client that forgets
it delays its successors and breaks no other promise.

Two cases are not checked: they leave a queue without a holder until its first waiter notices. One
is the end of a lease. The other is that more than OTHERS_COMPARED_MAX holders leave together, so
locks that had so many holders are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lockfast.sim.etcd.mvcc import Event, Kv
from lockfast.sim.etcd.state import State
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.plan import OTHERS_COMPARED_MAX
from lockfast.stores.etcd.requests import Kv as StoredKv


class HandOvers:
    """Examines the changes of each transaction, under the common root of all keys."""

    def __init__(self, state: State, root: str) -> None:
        self._mvcc = state.mvcc
        self._leases = state.leases
        self._root = root
        self._examined = state.mvcc.revision
        self._crowded: set[str] = set()
        """Locks that had more holders than a release compares."""

    def forgotten(self) -> Iterator[str]:
        """Yield each lock that the latest transaction has left to nobody, as text."""
        revision = self._mvcc.revision
        if revision > self._examined:
            self._examined = revision
            for prefix in self._vacated(self._mvcc.changes(revision)):
                first = self._first_waiting(prefix)
                if first is not None and prefix not in self._crowded:
                    yield f"nobody holds {prefix!r} although claim {first.key!r} waits for it"

    def _vacated(self, events: Iterable[Event]) -> Iterator[str]:
        for event in events:
            key = event.kv.key.decode().removeprefix(self._root)
            if key[:1] != "n" or f"{k.SEP}h{k.SEP}" not in key:
                continue
            prefix = k.scope_of(key)
            if not event.deleted:
                if len(self._range(f"{prefix}h", f"{prefix}i")) > OTHERS_COMPARED_MAX:
                    self._crowded.add(prefix)
            # What the end of a lease deletes had a lease that is gone.
            elif event.former is not None and event.former.lease in self._leases:
                yield prefix

    def _first_waiting(self, prefix: str) -> Kv | None:
        """Return the claim that should hold the lock; None if there is none or it may not."""
        stored = self._range(prefix, k.end_of(prefix))
        places = [k.parse_place(kv.key.decode().removeprefix(self._root)) for kv in stored]
        # Held, reserved, or closed; the start of the queue (a) and a limit that was changed (e) do
        # not keep claims out.
        if any(place.line not in "awe" for place in places):
            return None
        for kv, place in zip(stored, places, strict=True):
            if place.line == "w" and self._range(k.session_key(place.session)):
                claim, _ = k.claim_from(place, StoredKv(kv.key.decode(), kv.value.decode(), kv.mod))
                return kv if len(claim.places) == 1 else None
        return None

    def _range(self, start: str, stop: str = "") -> list[Kv]:
        end = f"{self._root}{stop}".encode() if stop else b""
        return self._mvcc.range(f"{self._root}{start}".encode(), end)
