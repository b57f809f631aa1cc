"""The locks and sessions of a namespace as browsers see them, and the deltas between versions.

Events of the log change the picture immediately; views read from the store correct it. Both may be
applied in any order: the last event of a claim decides what is shown of it, and a view is applied
only if no event of its lock arrived while it was read.

Instants are milliseconds of the server's wall clock, so that a browser can count down from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core.modes import SEMAPHORE
from lockfast.flow.admin import WatchEvent

Key = tuple[str, str]
"""Kind and name of a lock."""
ClaimKey = tuple[str, int]

CLAIMS_SHOWN: Final = 16
"""How many holders, and how many waiting claims, the picture has per lock; its page has more."""
DELTAS_KEPT: Final = 300
TAIL_MAX: Final = 200
"""Events per delta; if there are more, the newest."""


class Claim(NamedTuple):
    session: str
    n: int
    owner: str
    mode: str
    token: int
    since_ms: int
    priority: int = 0
    value: str | None = None
    weight: int = 1
    wants: str = ""
    until_ms: int = 0
    """When `max_hold` ends it; 0 if it ends with its session."""

    def row(self) -> list[Any]:
        return list(self)


class Lock:
    """One lock in use."""

    __slots__ = (
        *("changed", "closed_until_ms", "holder_count", "holders", "key", "limit"),
        *("waiting", "waiting_count"),
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.holders: dict[ClaimKey, Claim] = {}
        self.waiting: dict[ClaimKey, Claim] = {}
        self.holder_count = self.waiting_count = self.limit = self.closed_until_ms = 0
        self.changed = 0
        """The number of the last event applied to it."""

    @property
    def is_free(self) -> bool:
        return self.holder_count <= 0 and self.waiting_count <= 0 and not self.closed_until_ms

    def row(self) -> dict[str, Any]:
        return {
            "kind": self.key[0],
            "name": self.key[1],
            "holders": [claim.row() for claim in self.holders.values()],
            "waiting": [claim.row() for claim in self.waiting.values()],
            "holderCount": self.holder_count,
            "waitingCount": self.waiting_count,
            "limit": self.limit,
            "closedUntil": self.closed_until_ms,
        }


class Session(NamedTuple):
    session: str
    owner: str
    metadata: str
    ttl_ms: int
    until_ms: int
    claims: int
    renewals: int
    ended: str
    by: str


class Delta:
    """The changes between two versions."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.locks: dict[Key, dict[str, Any] | None] = {}
        self.sessions: dict[str, Session | None] = {}
        self.events: list[WatchEvent] = []
        self.events_left_out = 0
        self.figures: list[list[Any]] = []
        self.trouble = ""
        self.encoded: bytes | None = None
        """For callers that may see everything; encoded once."""


class Picture:
    """The current version, the changes since, and the last deltas."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.version = 0
        self.locks: dict[Key, Lock] = {}
        self.sessions: dict[str, Session] = {}
        self.trouble = ""
        self.deltas: deque[Delta] = deque(maxlen=DELTAS_KEPT)
        self.events_seen = 0
        self.uncertain: dict[Key, None] = {}
        """Locks whose view must be read: events alone do not give their order or counts."""
        self._changed_locks: dict[Key, None] = {}
        self._changed_sessions: dict[str, None] = {}
        self._events: deque[WatchEvent] = deque(maxlen=TAIL_MAX)
        self._event_count = 0
        self._said_trouble = ""

    # ── events ───────────────────────────────────────────────────────────────────────

    def apply(self, event: WatchEvent, now_ms: int) -> None:
        """Apply an event of the log."""
        self.events_seen += 1
        self._events.append(event)
        self._event_count += 1
        key = (event.kind, event.name)
        lock = self.locks.get(key)
        if lock is None:
            if event.what not in ("waiting", "granted"):
                return
            lock = self.locks[key] = Lock(key)
        if event.kind == SEMAPHORE:
            self.uncertain[key] = None  # only the view has its limit and weights
        lock.changed = self.events_seen
        _HANDLERS.get(event.what, Picture._other)(self, lock, event, now_ms)
        if lock.waiting_count > len(lock.waiting) or lock.holder_count > len(lock.holders):
            self.uncertain[key] = None
        self._note(lock)

    def _waiting(self, lock: Lock, event: WatchEvent, now_ms: int) -> None:
        key = (event.session, event.n)
        if key in lock.waiting or key in lock.holders:
            return
        lock.waiting_count += 1
        if len(lock.waiting) < CLAIMS_SHOWN:
            lock.waiting[key] = _claim(event, now_ms)
        if len(lock.waiting) > 1:
            self.uncertain[lock.key] = None  # a priority may have put it ahead of others

    def _granted(self, lock: Lock, event: WatchEvent, now_ms: int) -> None:
        key = (event.session, event.n)
        known = lock.waiting.pop(key, None)
        if known is not None:
            lock.waiting_count -= 1
        elif lock.waiting_count > len(lock.waiting):
            self.uncertain[lock.key] = None
        if key not in lock.holders:
            lock.holder_count += 1
        if len(lock.holders) < CLAIMS_SHOWN:
            made = _claim(event, now_ms)
            lock.holders[key] = (
                made
                if known is None
                else made._replace(priority=known.priority, weight=known.weight)
            )

    def _ended(self, lock: Lock, event: WatchEvent, now_ms: int) -> None:
        key = (event.session, event.n)
        if lock.holders.pop(key, None) is not None:
            lock.holder_count -= 1
        elif lock.waiting.pop(key, None) is not None:
            lock.waiting_count -= 1

    def _gave_up(self, lock: Lock, event: WatchEvent, now_ms: int) -> None:
        key = (event.session, event.n)
        if lock.waiting.pop(key, None) is not None:
            lock.waiting_count -= 1
        elif key in lock.holders:  # a conversion was cancelled; the claim stays held
            lock.holders[key] = lock.holders[key]._replace(wants="")

    def _other(self, lock: Lock, event: WatchEvent, now_ms: int) -> None:
        key = (event.session, event.n)
        held = lock.holders.get(key)
        if held is None:
            return
        if event.what == "converting":
            lock.holders[key] = held._replace(wants=event.detail)
        elif event.what == "converted":
            lock.holders[key] = held._replace(
                mode=event.mode, wants="", token=event.token or held.token
            )
        elif event.what == "proclaimed":
            lock.holders[key] = held._replace(value=event.detail)

    # ── views ────────────────────────────────────────────────────────────────────────

    def put_view(self, view: c.ResourceView, now_ms: int, asked: int) -> None:
        """Replace a lock by its view; `asked` is `events_seen` when the view was requested."""
        key = (view.kind, view.name)
        lock = self.locks.get(key)
        if lock is not None and lock.changed > asked:
            self.uncertain[key] = None
            return
        self.uncertain.pop(key, None)
        if lock is None:
            lock = Lock(key)
        before = lock.row()
        lock.holders = {
            (one.session, one.n): self._holder(
                _viewed(view, one, lock.holders, now_ms), one, now_ms
            )
            for one in view.holders[:CLAIMS_SHOWN]
        }
        lock.waiting = {
            (one.session, one.n): _viewed(view, one, lock.waiting, now_ms)
            for one in view.waiting[:CLAIMS_SHOWN]
        }
        lock.holder_count, lock.waiting_count = view.holder_count, view.waiting_count
        lock.limit = view.limit
        lock.closed_until_ms = _near(lock.closed_until_ms, now_ms, view.closed_ms)
        if lock.is_free:
            if key in self.locks:
                self._note(lock)
            return
        self.locks[key] = lock
        if lock.row() != before:
            self._note(lock)

    def _holder(self, claim: Claim, view: c.ClaimView, now_ms: int) -> Claim:
        """Return a claim with the end of its `max_hold`, if that is before its session's end."""
        session = self.sessions.get(claim.session)
        until_ms = now_ms + view.left_ms
        if session is None or until_ms > session.until_ms - 1000:
            return claim
        return claim._replace(until_ms=until_ms // 500 * 500)

    def recheck(self, keys: Iterable[Key], asked: int) -> None:
        """Read these locks again: a page of the listing should have contained them but did not."""
        for key in keys:
            lock = self.locks.get(key)
            if lock is not None and lock.changed <= asked:
                self.uncertain[key] = None

    def put_sessions(self, views: Mapping[str, c.SessionView], now_ms: int) -> None:
        """Replace all sessions."""
        for name in self.sessions.keys() - views.keys():
            del self.sessions[name]
            self._changed_sessions[name] = None
        for name, view in views.items():
            known = self.sessions.get(name)
            until_ms = _near(known.until_ms if known is not None else 0, now_ms, view.left_ms)
            made = Session(
                *(name, view.owner, view.metadata, view.ttl_ms, until_ms),
                *(view.claims, view.renewals, view.ended, view.by),
            )
            if made != known:
                self.sessions[name] = made
                self._changed_sessions[name] = None

    def _note(self, lock: Lock) -> None:
        if lock.is_free:
            self.locks.pop(lock.key, None)
            self.uncertain.pop(lock.key, None)
        self._changed_locks[lock.key] = None

    # ── deltas ───────────────────────────────────────────────────────────────────────

    @property
    def has_changed(self) -> bool:
        return bool(
            self._changed_locks
            or self._changed_sessions
            or self._events
            or self.trouble != self._said_trouble
        )

    def flush(self, figures: list[list[Any]]) -> Delta:
        """Create a new version from the changes, and return its delta."""
        self.version += 1
        delta = Delta(self.version)
        for key in self._changed_locks:
            lock = self.locks.get(key)
            delta.locks[key] = lock.row() if lock is not None else None
        for name in self._changed_sessions:
            delta.sessions[name] = self.sessions.get(name)
        delta.events = list(self._events)
        delta.events_left_out = self._event_count - len(self._events)
        delta.figures = figures
        delta.trouble = self._said_trouble = self.trouble
        self._changed_locks.clear()
        self._changed_sessions.clear()
        self._events.clear()
        self._event_count = 0
        self.deltas.append(delta)
        return delta

    def since(self, version: int) -> list[Delta] | None:
        """Return the deltas after a version; None if some are no longer kept."""
        if version == self.version:
            return []
        if not self.deltas or not self.deltas[0].version - 1 <= version <= self.version:
            return None
        return [delta for delta in self.deltas if delta.version > version]


_HANDLERS: Final[dict[str, Any]] = {
    "waiting": Picture._waiting,
    "granted": Picture._granted,
    "released": Picture._ended,
    "expired": Picture._ended,
    "revoked": Picture._ended,
    "gave_up": Picture._gave_up,
}


def _claim(event: WatchEvent, now_ms: int) -> Claim:
    token = 0 if event.kind == SEMAPHORE else event.token or 0
    return Claim(
        *(event.session, event.n, event.owner, event.mode, token, now_ms),
        value=event.detail or None,
    )


def _viewed(
    view: c.ResourceView, claim: c.ClaimView, known: Mapping[ClaimKey, Claim], now_ms: int
) -> Claim:
    place = next((p for p in claim.places if p[:2] == (view.kind, view.name)), None)
    before = known.get((claim.session, claim.n))
    since_ms = now_ms - claim.for_ms
    if before is not None and abs(before.since_ms - since_ms) < 500:
        since_ms = before.since_ms
    return Claim(
        claim.session,
        claim.n,
        claim.owner,
        place.mode if place is not None else "",
        0 if view.kind == SEMAPHORE else claim.token,
        since_ms,
        claim.priority,
        claim.value,
        place.weight if place is not None else 1,
        claim.wants,
    )


def _near(known_ms: int, now_ms: int, left_ms: int) -> int:
    """Return the instant `left_ms` from now; the known one if it is within 250 ms of that."""
    if left_ms <= 0:
        return 0
    until_ms = now_ms + left_ms
    return known_ms if abs(known_ms - until_ms) < 250 else until_ms
