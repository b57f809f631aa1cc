"""Wake a session: watch its own keys, and the claims ahead of it.

A client that grants or revokes a claim of another process writes a `Word` under that session's
lease in the same transaction. The watch resumes from the last revision it has seen, so an
interruption loses nothing; after a compaction, everything is read again. A member that does not
confirm a watch in time is avoided, and the watch is opened at another one.

A claim that has waited for ARM_AFTER_MS is armed: its queue is settled once, and then the watch
also covers the claim ahead or, for the first in the queue, the holders and what keeps the resource
closed. If any of these is deleted, by a release or by the end of a lease, the queue is settled
again. The next live claim thus handles a dead holder or a dead waiter without any other client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lockfast.core import commands as c
from lockfast.core.commands import (
    WAKE_ENDED,
    WAKE_EVENTS,
    WAKE_GRANTED,
    WAKE_LOOK,
    WAKE_WANTED,
    Blocker,
    Wake,
)
from lockfast.errors import StoreError
from lockfast.ports import Deliver
from lockfast.stores.derived.stored import TOKEN_MAX, UnreadableError
from lockfast.stores.derived.view import Name
from lockfast.stores.etcd import layout as k
from lockfast.stores.etcd.errors import CompactedError, LeaseGoneError, TokenRefusedError
from lockfast.stores.etcd.execution import Execution
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.owned import OwnClaim, OwnSession
from lockfast.stores.etcd.requests import Kv, Range, changes_in
from lockfast.stores.etcd.steps import settle
from lockfast.stores.etcd.transport import Json
from lockfast.stores.etcd.view import HOLDERS_READ

REQUEST_MS: Final = 2000
RETRY_FIRST_MS: Final = 50
RETRY_MAX_MS: Final = 2000
ARM_AFTER_MS: Final = 500
"""Most waits are shorter, and every lease is longer."""
ARMED_MAX: Final = 32
"""The most queues that are armed; keep-alives check the others."""


class _Armed(NamedTuple):
    """What is watched for one queue."""

    n: int
    keys: tuple[tuple[str, str], ...]
    """Keys, or ranges of keys, whose deletion concerns the claim."""


class EtcdWakeListener:
    """The watch of one session. Only its keeper listens, on one thread."""

    process = ""
    """Empty: another machine cannot detect the death of a process, only the end of its lease."""

    def __init__(self, gateway: Gateway, own: OwnSession, deliver: Deliver) -> None:
        self.inbox = k.words_prefix(own.id)
        self._gateway = gateway
        self._keys = gateway.keys
        self._network = gateway.network
        self._own = own
        self._deliver = deliver
        own.deliver = deliver
        self._watcher = self._network.watcher()
        self._mutex = self._network.mutex()
        self._waiting: dict[int, int] = {}
        """Waiting claims, and when to arm their queues."""
        self._armed: dict[Name, _Armed] = {}
        self._seen = 0
        """The watch has delivered everything up to this revision."""
        self._hears_log = False
        self._ended = False
        self._retry_at_ms = 0
        self._retry_ms = RETRY_FIRST_MS
        self._unconfirmed = 0
        """How many ranges of the open watch the member has not confirmed yet."""
        self._confirm_by_ms = 0

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        wakes: list[Wake] = []
        now_ms = self._network.now_ms()
        try:
            if now_ms >= self._retry_at_ms:
                due = self._due(now_ms)
                if due:
                    await self._arm(due, wakes)
                if not self._watcher.is_open():
                    await self._subscribe(wakes)
        except (StoreError, TokenRefusedError, LeaseGoneError, UnreadableError):
            # The keeper's own requests report the error and retry in time.
            self._fail()
        if wakes:
            timeout_ms = 0
        try:
            for message in await self._watcher.next(self._wait_ms(timeout_ms)):
                self._take(message, wakes)
        except StoreError:
            self._fail()
        if self._is_unconfirmed() and self._network.now_ms() >= self._confirm_by_ms:
            self._gateway.transport.avoid_member()
            self._fail()
        return wakes

    def _is_unconfirmed(self) -> bool:
        return self._unconfirmed > 0 and self._watcher.is_open()

    def _wait_ms(self, timeout_ms: int | None) -> int | None:
        """Return how long to listen: until the keeper's next duty or our own next attempt."""
        now_ms = self._network.now_ms()
        with self._mutex:
            due_ms = [at_ms for at_ms in self._waiting.values() if at_ms]
        if not self._watcher.is_open():
            due_ms.append(self._retry_at_ms)
        if self._is_unconfirmed():
            due_ms.append(self._confirm_by_ms)
        # After a failure nothing is attempted before `_retry_at_ms`, however long it has been due.
        waits = [max(at_ms, self._retry_at_ms) - now_ms for at_ms in due_ms]
        if timeout_ms is not None:
            waits.append(timeout_ms)
        return max(0, min(waits)) if waits else None

    def _fail(self) -> None:
        self._watcher.drop()
        self._retry_at_ms = self._network.now_ms() + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)

    # ── subscribing ──────────────────────────────────────────────────────────────────

    async def _subscribe(self, wakes: list[Wake]) -> None:
        until_ms = self._gateway.until_ms(REQUEST_MS)
        own = self._own.id
        if not self._seen:
            words = Range(k.word_key(own, self._own.words_from), k.end_of(self.inbox))
            execution = Execution(self._gateway, until_ms)
            known = await execution.read([Range(k.watching_key(own)), words])
            self._hears_log = known.get(k.watching_key(own)) is not None
            self._seen = known.revision
            for kv in known.found[words].kvs:
                self._word(kv, wakes)
            with self._mutex:
                waiting = sorted(self._waiting)
            wakes += [Wake(self.inbox, own, n, WAKE_LOOK) for n in waiting]
            if self._hears_log:
                wakes.append(Wake(self.inbox, own, 0, WAKE_EVENTS))
        requests = [
            self._watch(self.inbox, k.end_of(self.inbox)),
            self._watch(k.session_key(own), deletions_only=True),
            self._watch(k.watching_key(own)),
        ]
        if self._hears_log:
            requests.append(self._watch(*k.HISTORY))
        for armed in self._armed.values():
            requests += [self._watch(*one, deletions_only=True) for one in armed.keys]
        token = await self._gateway.token(until_ms)
        await self._watcher.open(requests, REQUEST_MS, token)
        self._unconfirmed = len(requests)
        self._confirm_by_ms = self._network.now_ms() + REQUEST_MS

    def _watch(self, start: str, stop: str = "", *, deletions_only: bool = False) -> Json:
        # Repeat the last revision: its events may have been split over several messages.
        request: Json = {"key": self._keys.coded(start), "start_revision": str(self._seen)}
        if stop:
            request["range_end"] = self._keys.coded(stop)
        if deletions_only:
            request["filters"] = ["NOPUT"]
        return request

    # ── arming ───────────────────────────────────────────────────────────────────────

    def _due(self, now_ms: int) -> list[int]:
        """Return the claims whose queues are to be armed now."""
        with self._mutex:
            due = [n for n, at_ms in self._waiting.items() if at_ms and at_ms <= now_ms]
            for n in due:
                self._waiting[n] = 0
        return due

    async def _arm(self, due: list[int], wakes: list[Wake]) -> None:
        """Settle the queues in which we wait, and watch the claims ahead of ours."""
        foremost: dict[Name, tuple[str, int]] = {}
        for n in list(self._waiting):
            own = self._own.claims.get(n)
            if own is not None and not own.claim.token:
                mine = own.claim.rank, n
                for place in own.claim.places:
                    foremost[place[:2]] = min(mine, foremost.get(place[:2], mine))
        self._armed = {at: armed for at, armed in self._armed.items() if at in foremost}
        for at, (_, n) in foremost.items():
            own, armed = self._own.claims.get(n), self._armed.get(at)
            is_armed = armed is not None and armed.n == n and n not in due
            has_room = armed is not None or len(self._armed) < ARMED_MAX
            if own is not None and not is_armed and has_room:
                await self._arm_line(at, own, wakes)

    async def _arm_line(self, at: Name, own: OwnClaim, wakes: list[Wake]) -> None:
        execution = Execution(self._gateway, self._gateway.until_ms(REQUEST_MS))
        await settle(execution, [c.Place(*at, "")])
        prefix = k.resource_prefix(*at)
        n, mine = own.claim.n, k.place_key(prefix, "w", own.claim.rank, self._own.id, own.slot)
        ranges = [
            Range(mine),
            Range(k.queue_from(prefix, execution.start_of(prefix))[0], mine, 1, True),
            Range(f"{prefix}h\x1f", f"{prefix}h ", HOLDERS_READ),
        ]
        known = await execution.read(ranges)
        if known.get(mine) is None:
            self._armed.pop(at, None)
            wakes.append(Wake(self.inbox, self._own.id, n, WAKE_LOOK))
            return
        before, holders = known.found[ranges[1]].kvs, known.found[ranges[2]].kvs
        watched = [(before[0].key, "")] if before else [(f"{prefix}c", f"{prefix}w")]
        if not before:
            held = [k.claim_from(k.parse_place(kv.key), kv)[0] for kv in holders]
            watched += [(k.bound_key(one.session, one.n), "") for one in held if one.until_ms]
        armed = self._armed.get(at)
        if armed is None or armed.keys != tuple(watched) or not self._watcher.is_open():
            # Reopen the watch at this revision, so that it reports what was deleted since.
            self._seen = min(self._seen or known.revision, known.revision)
            self._watcher.drop()
        self._armed[at] = _Armed(n, tuple(watched))

    # ── hearing ──────────────────────────────────────────────────────────────────────

    def _take(self, message: Json, wakes: list[Wake]) -> None:
        try:
            is_confirmed, changes = changes_in(self._keys, message)
            if is_confirmed:
                self._unconfirmed -= 1
                self._retry_ms = RETRY_FIRST_MS
            for kv, before in changes:
                self._change(kv, before is not None, wakes)
                self._seen = max(self._seen, kv.mod)
        except CompactedError:
            # Events up to there are lost: read the state instead.
            self._seen = 0
            self._watcher.drop()
        except TokenRefusedError as error:
            self._gateway.context.token = ""
            raise StoreError(self._keys.label, f"ended a watch ({error})") from None

    def _change(self, kv: Kv, is_deleted: bool, wakes: list[Wake]) -> None:
        own = self._own.id
        if kv.key.startswith(self.inbox):
            if not is_deleted:
                self._word(kv, wakes)
        elif kv.key == k.watching_key(own):
            if self._hears_log == is_deleted:
                self._hears_log = not is_deleted
                self._watcher.drop()
        elif kv.key == k.session_key(own) and is_deleted:
            if not self._ended:
                wakes.append(Wake(self.inbox, own, 0, WAKE_ENDED))
            self._ended = True
        elif self._hears_log and (kv.key[:1] == "l" or (kv.key[:1] == "n" and is_deleted)):
            wakes.append(Wake(self.inbox, own, 0, WAKE_EVENTS))
        if is_deleted:
            self._gone(kv.key)

    def _gone(self, key: str) -> None:
        """Arm again the queues that a deleted key concerns."""
        for armed in self._armed.values():
            if any(key == start or start <= key < stop for start, stop in armed.keys):
                with self._mutex:
                    # If the claim has left, another of ours may be the first in its queue now.
                    due = [armed.n] if armed.n in self._waiting else list(self._waiting)
                    self._waiting.update(dict.fromkeys(due, 1))

    def _word(self, kv: Kv, wakes: list[Wake]) -> None:
        """Process a word from another process about one of our claims.

        Skip a word that cannot be read: every keep-alive looks at waiting claims.
        """
        own = self._own
        try:
            n = int(kv.key.rsplit(k.SEP, 1)[1], 16)
            word: k.Word = k.read(k.Word, kv)
        except (ValueError, LookupError):
            return
        claim, token = own.claims.get(n), word.offset + k.STRIDE * kv.mod
        own.has_words = True
        if claim is not None:
            claim.has_word = True
        for what in word.whats:
            if what == WAKE_GRANTED and 0 < token <= TOKEN_MAX:
                if claim is not None and claim.claim.token in (0, token):
                    claim.granted(token, kv.mod, k.heirs_of(word.heirs, kv.mod))
                # Even if a step of ours has seen the grant: that does not tell the caller.
                self._deliver(Wake(self.inbox, own.id, n, what, token))
            elif what == k.HEIR and claim is not None:
                claim.inherits(k.heirs_of(word.heirs, kv.mod), kv.mod)
            elif what == WAKE_WANTED:
                self._deliver(Wake(self.inbox, own.id, n, what))
            elif what == WAKE_LOOK:
                wakes.append(Wake(self.inbox, own.id, n, what))

    # ── from other threads ───────────────────────────────────────────────────────────

    def interrupt(self) -> None:
        self._watcher.interrupt()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Record whether a claim waits; the claims ahead are looked up when its queue is armed."""
        with self._mutex:
            if not blockers:
                self._waiting.pop(n, None)
            elif n not in self._waiting:
                self._waiting[n] = self._network.now_ms() + ARM_AFTER_MS

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._own.deliver = None
        self._watcher.close()
        self._gateway.transport.close()
