"""Combine the transactions of concurrent callers into one request.

While a request of a wire is in flight, new transactions wait until there are as many of them, and
then a second request takes them: the client prepares one while etcd executes the other. The
transactions of a request are nested: one Raft entry and one fsync for all of them. Each has its own
comparisons and its own outcome. They share a revision, so each has its own `Slot` of it.

etcd evaluates all comparisons of a request before it executes any operation, so transactions of one
request do not see each other: two of them could take the same free lock. A transaction is therefore
never batched with one that writes what it compares or writes. Nor is it sent while another request
concerns the same resource: requests may overtake each other, and callers of one client that join a
queue expect to be served in the order of their calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from lockfast.errors import OutcomeUnknownError, StoreBusyError, StoreError, StoreUnavailableError
from lockfast.ports import Signal
from lockfast.stores.derived.steps import QUEUED_TOO_LONG
from lockfast.stores.etcd.errors import DuplicateKeyError, LeaseGoneError
from lockfast.stores.etcd.layout import STRIDE
from lockfast.stores.etcd.requests import Answer, txn
from lockfast.stores.etcd.transport import Network

TOGETHER_MAX: Final = 48
IN_FLIGHT_MAX: Final = 2
SIZE_MAX: Final = 64
"""The largest transaction that may be batched: etcd counts nested operations together."""

Request: TypeAlias = Callable[[str, int, bool], Awaitable[Answer]]
"""Send a transaction until an instant, with retries if it is repeatable."""


class Slot(NamedTuple):
    """The part of a request that belongs to one transaction."""

    order: int = 0
    tokens: int = 0
    """How many tokens the transactions before it in the request allocate."""


class Proposal(NamedTuple):
    """A transaction to send."""

    body: Callable[[Slot], str]
    size: int
    """The number of comparisons or operations, whichever is larger."""
    writes: frozenset[str] = frozenset()
    """Scopes (`layout.scope_of`) of the keys that it may put or delete."""
    tokens: int = 0
    compares: frozenset[str] = frozenset()
    """Scopes of the keys that it compares."""

    @property
    def concerns(self) -> frozenset[str]:
        return self.writes | self.compares


class Committed(NamedTuple):
    """The result of a proposal."""

    answer: Answer
    slot: Slot

    def token(self, epoch: int, position: int = 0) -> int:
        """Return the token that the transaction allocated, or the one at `position`."""
        return epoch + self.slot.tokens + position + STRIDE * self.answer.revision


@dataclass(eq=False)
class _Item:
    proposal: Proposal
    until_ms: int
    signal: Signal
    leads: _Batch | None = None
    """The batch that this item's caller must send."""
    outcome: Committed | BaseException | None = None


@dataclass(eq=False)
class _Batch:
    items: list[_Item] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    concerned: set[str] = field(default_factory=set)
    """Scopes that its transactions write or compare."""
    tokens: int = 0
    was_sent: bool = False
    """Whether its caller has begun to send it."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, item: _Item, count_max: int) -> bool:
        """Add a transaction, unless it must not share a request with those of this batch."""
        size, writes, tokens, _ = item.proposal[1:]
        concerned = item.proposal.concerns
        if self.items and (
            len(self) == count_max
            or max(size, self.items[0].proposal.size) > SIZE_MAX
            or self.tokens + tokens > STRIDE
            or not (writes.isdisjoint(self.concerned) and concerned.isdisjoint(self.written))
        ):
            return False
        self.items.append(item)
        self.written |= writes
        self.concerned |= concerned
        self.tokens += tokens
        return True


class Batches:
    """A queue of transactions; at most two batches are in flight."""

    def __init__(
        self,
        label: str,
        network: Network,
        make_signal: Callable[[], Signal],
        request: Request,
        together: bool,
    ) -> None:
        self._label = label
        self._network = network
        self._make_signal = make_signal
        self._request = request
        self._together = together
        self._mutex = network.mutex()
        self._waiting: list[_Item] = []
        self._in_flight: list[_Batch] = []

    async def send(self, proposal: Proposal, until_ms: int) -> Committed:
        """Execute one transaction, possibly in the same request as those of other callers."""
        if not self._together:
            return await self._send_alone(proposal, until_ms)
        item = _Item(proposal, until_ms, self._make_signal())
        try:
            with self._mutex:
                self._waiting.append(item)
            await self._wait(item)
            if item.leads is not None:
                await self._lead(item.leads)
        except BaseException:
            self._withdraw(item)
            raise
        outcome = item.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is None:
            kind = OutcomeUnknownError if proposal.writes else StoreUnavailableError
            raise kind(self._label, "did not answer in time")
        return outcome

    async def _wait(self, item: _Item) -> None:
        """Wait until the transaction was sent, or this caller must send it."""
        self._appoint()
        # Leave half of the time for the request itself.
        left_ms = (item.until_ms - self._network.now_ms()) // 2
        if item.leads is not None or await item.signal.wait(max(1, left_ms)):
            return
        with self._mutex:
            if item in self._waiting:
                self._waiting.remove(item)
                item.outcome = StoreBusyError(self._label, QUEUED_TOO_LONG, "retry")

    def _withdraw(self, item: _Item) -> None:
        """Forget a transaction whose caller was interrupted, wherever that was."""
        with self._mutex:
            if item in self._waiting:
                self._waiting.remove(item)
            batch, item.leads = item.leads, None
            if batch is not None and not batch.was_sent:
                self._return(batch, [other for other in batch.items if other is not item])
        if batch is not None and batch.was_sent:
            self._finish(batch)
        else:
            self._appoint()

    def _return(self, batch: _Batch, items: list[_Item]) -> None:
        """Let the transactions of a batch that was not sent wait again."""
        if batch in self._in_flight:
            self._in_flight.remove(batch)
        self._waiting[:0] = [item for item in items if item not in self._waiting]

    async def _lead(self, batch: _Batch) -> None:
        """Send a batch, signal its outcome to every caller, and appoint the next sender."""
        try:
            batch.was_sent = True
            items = batch.items
            if len(items) == 1 or not await self._send_together(items):
                for item in items:
                    await self._send_item(item)
        except Exception as error:
            for item in batch.items:
                item.outcome = error
        finally:
            self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        """Signal the outcome of a batch; again, if an interruption kept it from being done."""
        with self._mutex:
            if batch in self._in_flight:
                self._in_flight.remove(batch)
        self._appoint()
        for item in batch.items:
            if item.outcome is None:
                item.outcome = OutcomeUnknownError(
                    self._label, "the request was cancelled", "retry"
                )
            item.signal.set()

    def _appoint(self) -> None:
        """Form batches of the waiting transactions, and signal a caller of each to send it."""
        batch = _Batch()
        try:
            while True:
                with self._mutex:
                    batch = _Batch()
                    self._fill(batch)
                    if not batch:
                        return
                    self._in_flight.append(batch)
                    leader = max(batch.items, key=lambda item: item.until_ms)
                    leader.leads = batch
                leader.signal.set()
        except BaseException:
            leaders = [item for item in batch.items if item.leads is batch]
            for item in leaders:
                item.signal.set()
            if not leaders:
                with self._mutex:
                    self._return(batch, batch.items)
            raise

    def _fill(self, batch: _Batch) -> None:
        """Move waiting transactions into a new batch; it stays empty if they must wait."""
        sent = self._in_flight
        share = ceil((len(self._waiting) + sum(map(len, sent))) / IN_FLIGHT_MAX)
        share = min(share, TOGETHER_MAX)
        if len(sent) < IN_FLIGHT_MAX and (len(self._waiting) >= share or not sent):
            busy = {scope for other in sent for scope in other.concerned if scope[0] == "n"}
            self._waiting = [
                item
                for item in self._waiting
                if not busy.isdisjoint(item.proposal.concerns) or not batch.add(item, share)
            ]

    async def _send_item(self, item: _Item) -> None:
        try:
            item.outcome = await self._send_alone(item.proposal, item.until_ms)
        except (StoreError, LeaseGoneError, DuplicateKeyError) as error:
            item.outcome = error

    async def _send_alone(self, proposal: Proposal, until_ms: int) -> Committed:
        slot = Slot()
        answer = await self._request(proposal.body(slot), until_ms, not proposal.writes)
        return Committed(answer, slot)

    async def _send_together(self, batch: list[_Item]) -> bool:
        """Send several transactions; return False if one of them failed and none was executed."""
        before = accumulate((item.proposal.tokens for item in batch[:-1]), initial=0)
        slots = [Slot(index, tokens) for index, tokens in enumerate(before)]
        nested = [
            f'{{"request_txn":{item.proposal.body(slot)}}}'
            for item, slot in zip(batch, slots, strict=True)
        ]
        until_ms = max(item.until_ms for item in batch)
        repeatable = not any(item.proposal.writes for item in batch)
        try:
            answer = await self._request(txn(nested), until_ms, repeatable)
        except (DuplicateKeyError, LeaseGoneError):
            return False
        for index, item in enumerate(batch):
            item.outcome = Committed(answer.nested(index), slots[index])
        return True
