"""A resource as one step has read it, and as the next one may assume it to be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lockfast.core.rows import Claim
from lockfast.stores.derived.view import ClaimId
from lockfast.stores.zookeeper.layout import Bucket, Document, Entry, Queued
from lockfast.stores.zookeeper.owned import OwnSessions


@dataclass
class Loaded:
    kind: str
    name: str
    path: str
    exists: bool = False
    version: int = 0
    children: frozenset[str] = frozenset()
    """The nodes below it that existed after it was read."""
    document: Document = field(default_factory=Document)
    """The document, without entries whose nodes are gone."""
    dead: list[Entry] = field(default_factory=list)
    taken: dict[ClaimId, tuple[Claim, str]] = field(default_factory=dict)
    """Claims that were revoked and not released yet, with their nodes."""
    is_refilled: bool = False
    """Claims of a bucket were read into the document."""
    peeked: dict[ClaimId, Entry] = field(default_factory=dict)
    """Claims that were read from a bucket and stay there."""
    below: dict[str, frozenset[str]] = field(default_factory=dict)
    """The names of all nodes in a bucket, where they were read."""
    queued: dict[str, list[Queued]] = field(default_factory=dict)
    """The claims that wait in a bucket and are not in the document, where this was read."""
    seen_ms: int = 0
    """When this was read, written or heard of."""

    def copy(self) -> Loaded:
        """Return the resource without what was read of its buckets."""
        return replace(self, is_refilled=False, peeked={}, below={}, queued={})

    def is_shared(self, own: OwnSessions) -> bool:
        """Return whether the document has claims of other processes."""
        return any(own.get(session) is None for session, _ in self.document.entries)

    def bucket_for(self, head_start_ms: int) -> Bucket | None:
        """Return the bucket that a claim with this head start may join."""
        fitting = [b for b in self.document.buckets if b.head_start_ms == head_start_ms]
        return fitting[-1] if fitting and not fitting[-1].is_sealed else None

    def waiting_in(self, bucket: Bucket) -> int:
        """Return how many claims wait in a bucket; 1 if it was not read, since some may."""
        return len(self.queued[bucket.node]) if bucket.node in self.queued else 1

    def unread(self) -> list[Bucket]:
        """Return the buckets in which claims wait, or may wait."""
        return [bucket for bucket in self.document.buckets if self.waiting_in(bucket)]

    def may_wait_in(self, node: str, of: ClaimId) -> bool:
        """Return whether a claim may be in a bucket, as far as it was read."""
        if node in self.queued:
            return any(q.of == of for q in self.queued[node])
        return any(bucket.node == node for bucket in self.document.buckets)
