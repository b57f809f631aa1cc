"""The watches of one session, which are set again whenever they have fired.

A session always watches its bell, which is set by every step that grants one of its claims or wants
the session to look at one, and its session node, which changes when the session is ended. A waiting
claim also watches the sessions directly ahead of it, which can expire without any step, and then
settles the queue. A claim in a bucket may not know the claim directly ahead; it finds out when it
looks at its queue, with every keep-alive.

The content of a bell includes the token of a grant and the document as the step has written it, so
one read suffices to hold the lock and to release it in one write. For the same reason a claim that
joins by changing the document rings the bell of a sole holder. The callback reads the bell itself
and delivers grants, so that a grant does not wait for the keeper's thread. The keeper sets all
other watches, and that of the bell at first and after a broken connection.

A watch fires once. The read that reports the change sets it again, so nothing is lost in between: a
change before that read is in its answer, a change after it fires the watch. If the bell was set
more than once since it was read, its content names only the claims of the last time; then every
waiting claim is looked at, and every retained one, which others may want. If the connection breaks,
all watches are lost: the keeper is woken at once, reports its leases as uncertain, and looks at all
claims with an immediate keep-alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
from lockfast.ports import WAKE_DISCONNECTED, Deliver
from lockfast.stores.zookeeper import layout as k
from lockfast.stores.zookeeper.context import Context, Requests, read_base
from lockfast.stores.zookeeper.owned import OwnSession
from lockfast.stores.zookeeper.transport import (
    Answer,
    Exists,
    Get,
    LinkLostError,
    Request,
)

REQUEST_MS: Final = 2000
RETRY_MS: Final = 200


class ZooKeeperWakeListener:
    process = ""

    def __init__(self, context: Context, own: OwnSession, deliver: Deliver) -> None:
        self.inbox = own.id
        self._context = context
        self._own = own
        self._network = context.network
        self._mutex = context.network.mutex()
        self._signal = self._network.keeper.signal()
        self._bell = context.paths.bell(own.id)
        self._session = context.paths.session(own.id)
        self._armed: set[str] = set()
        self._rung = 0
        """The version of the bell that was last read."""
        self._ahead: dict[int, set[str]] = {}
        """The claims whose callers wait, with the session nodes of the claims ahead."""
        self._heard: list[Wake] = []
        """Wakes for the keeper, from bells that were read by a callback."""
        self._log = ("", 0)
        """The node of the log, and its version when its watch was last set; -1 if it is gone."""
        self._missed = False
        self._ended = False
        self._deliver = deliver
        own.deliver, own.on_event = deliver, self._on_event

    async def listen(self, timeout_ms: int | None) -> Sequence[Wake]:
        wakes: list[Wake] = []
        is_armed = await self._arm(wakes)
        if not wakes:
            if not is_armed:
                timeout_ms = RETRY_MS if timeout_ms is None else min(timeout_ms, RETRY_MS)
            await self._signal.wait(timeout_ms)
            # An `interrupt` before this line is not lost: its cause was recorded before it was
            # called, and the keeper checks for causes before it listens again.
            self._signal = self._network.keeper.signal()
            await self._arm(wakes)
        return wakes

    async def _arm(self, wakes: list[Wake]) -> bool:
        """Set the watches that are not set; return whether all are set."""
        own = self._own
        if own.ended:
            return True
        if own.row is None or own.link is None:
            return False  # not open yet
        with self._mutex:
            heard, self._heard = self._heard, []
            missed, self._missed = self._missed, False
            watched = {self._bell, self._session, *self._logs()}.union(*self._ahead.values())
            wanted = sorted(watched - self._armed)
            # Before the request: a watch that fires while it is in flight is set again.
            self._armed.update(wanted)
            if missed:
                self._armed.difference_update(wanted)
        wakes += heard
        if missed:
            # Return first: while the connection is broken, setting watches can take seconds.
            wakes.append(Wake(self.inbox, own.id, 0, WAKE_DISCONNECTED))
            return False
        if not wanted:
            return True
        asked: list[Request] = [
            Get(path, True) if path == self._bell else Exists(path, True) for path in wanted
        ]
        network = self._network
        until_ms = network.now_ms() + REQUEST_MS
        try:
            requests = Requests(self._context, own.link, network.keeper, until_ms)
            answers = await requests.call(*asked)
            for path, answer in zip(wanted, answers, strict=True):
                self._take(path, answer, wakes)
            if self._log[1] < 0 and own.hears_log:
                await read_base(requests)  # it says which log is written
        except (StoreError, LinkLostError):
            with self._mutex:
                self._armed.difference_update(wanted)
            return False
        if self._armed.issuperset(self._logs()):
            return True
        return await self._arm(wakes)

    def _logs(self) -> list[str]:
        """Return the node of the log, if events in it are to wake the session."""
        base = self._context.base
        return [self._context.paths.log(base[0].log_number)] if self._own.hears_log and base else []

    def _take(self, path: str, answer: Answer, wakes: list[Wake]) -> None:
        """Process the state of a node at the moment its watch was set."""
        if path == self._bell:
            self._ring(answer, wakes)
        elif path == self._session:
            is_over = answer.stat is None or answer.stat.version > 0
            if is_over and not self._ended:
                self._ended = True
                wakes.append(Wake(self.inbox, self._own.id, 0, WAKE_ENDED))
        elif path.startswith(self._context.paths.logs):
            state = (path, answer.stat.version if answer.stat is not None else -1)
            if state != self._log and self._own.hears_log:
                self._log = state
                wakes.append(Wake(self.inbox, self._own.id, 0, WAKE_EVENTS))
        elif answer.stat is None or answer.stat.version > 0:
            with self._mutex:
                self._armed.discard(path)
                concerned = [n for n, paths in self._ahead.items() if path in paths]
                for n in concerned:
                    self._ahead[n].discard(path)
            wakes += [Wake(self.inbox, self._own.id, n, WAKE_LOOK) for n in concerned]

    def _ring(self, answer: Answer, wakes: list[Wake]) -> None:
        stat, own = answer.stat, self._own
        with self._mutex:
            if stat is None or stat.version <= self._rung:
                return
            was_one = stat.version == self._rung + 1
            self._rung = stat.version
        try:
            rings, documents = k.rings_from(self._context.label, answer.data, stat)
        except (ValueError, StoreError):  # not readable, or of another schema
            rings, documents, was_one = [], [], False
        # Before a grant is delivered: the caller may release at once.
        for name, version, document in documents:
            self._context.learned(name, version, document)
        for n, what, token in rings:
            if what == WAKE_GRANTED:
                own.granted(n, token)
            if what in (WAKE_GRANTED, WAKE_WANTED):
                self._deliver(Wake(self.inbox, own.id, n, what, token))
            elif what == WAKE_LOOK:
                wakes.append(Wake(self.inbox, own.id, n, WAKE_LOOK))
        if not was_one:
            # A step of ours may have seen a grant; that does not tell the caller.
            with own.mutex:
                concerned = {
                    n for n, claim in own.claims.items() if not claim.token or claim.is_retained
                }
            with self._mutex:
                concerned |= set(self._ahead)
            wakes += [Wake(self.inbox, own.id, n, WAKE_LOOK) for n in sorted(concerned)]

    # ── from other threads ───────────────────────────────────────────────────────────

    def _on_event(self, path: str) -> None:
        link = self._own.link
        if path == self._bell and link is not None:
            link.watch(path, self._on_bell)
            return
        with self._mutex:
            if path:
                self._armed.discard(path)
            else:
                self._armed.clear()
                self._missed = True
        self._signal.set()

    def _on_bell(self, answer: Answer | None) -> None:
        wakes: list[Wake] = []
        if answer is not None and self._own.deliver is not None:
            self._ring(answer, wakes)
        with self._mutex:
            if answer is None:
                self._armed.discard(self._bell)
            self._heard += wakes
            is_due = bool(wakes) or self._bell not in self._armed
        if is_due:
            self._signal.set()

    def interrupt(self) -> None:
        self._signal.set()

    def watch_over(self, n: int, blockers: Sequence[Blocker]) -> None:
        """Look at claim `n` again when the session of one of these blockers ends."""
        paths = {
            self._context.paths.session(blocker.session)
            for blocker in blockers
            if blocker.session != self._own.id
        }
        with self._mutex:
            self._ahead.pop(n, None)
            if blockers:
                self._ahead[n] = paths
            is_new = not paths <= self._armed
        if is_new:
            self._signal.set()

    def dead(self, blockers: Sequence[Blocker]) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self._own.deliver = self._own.on_event = None
