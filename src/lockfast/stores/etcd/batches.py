"""Combine the transactions of concurrent callers into one request.

While a request of a wire is in flight, new transactions wait. They are sent together in the next
request, nested: one Raft entry and one fsync for all of them. Each has its own comparisons and its
own outcome. They share a revision, so each has its own `Slot` of it.

etcd evaluates all comparisons of a request before it executes any operation, so transactions of one
request do not see each other: two of them could take the same free lock. A transaction is therefore
never batched with one that writes what it compares or writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from lockfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from lockfast.ports import Signal
from lockfast.stores.etcd.errors import DuplicateKeyError, LeaseGoneError
from lockfast.stores.etcd.layout import STRIDE
from lockfast.stores.etcd.requests import Answer, txn
from lockfast.stores.etcd.transport import Network

TOGETHER_MAX: Final = 48
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
    leads: list[_Item] | None = None
    """The batch that this item's caller must send."""
    outcome: Committed | BaseException | None = field(default=None)


class Batches:
    """A queue of transactions; at most one batch is in flight."""

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
        self._is_sending = False

    async def send(self, proposal: Proposal, until_ms: int) -> Committed:
        """Execute one transaction, possibly in the same request as those of other callers."""
        if not self._together:
            return await self._send_alone(proposal, until_ms)
        item = _Item(proposal, until_ms, self._make_signal())
        with self._mutex:
            leads = not self._is_sending
            if leads:
                self._is_sending = True
                item.leads = [item]
            else:
                self._waiting.append(item)
        if not leads:
            await self._wait(item)
        if item.leads is not None:
            await self._lead(item.leads)
        outcome = item.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is None:
            kind = OutcomeUnknownError if proposal.writes else StoreUnavailableError
            raise kind(self._label, "did not answer in time")
        return outcome

    async def _wait(self, item: _Item) -> None:
        try:
            if await item.signal.wait(max(1, item.until_ms - self._network.now_ms())):
                return
            with self._mutex:
                if item in self._waiting:
                    self._waiting.remove(item)
                    item.outcome = StoreUnavailableError(
                        self._label, "the requests before this one took too long"
                    )
        except BaseException:
            with self._mutex:
                if item in self._waiting:
                    self._waiting.remove(item)
                batch, item.leads = item.leads, None
            if batch is not None:  # this caller was to send the batch: another must
                with self._mutex:
                    self._waiting[:0] = [other for other in batch if other is not item]
                self._appoint()
            raise

    async def _lead(self, batch: list[_Item]) -> None:
        """Send a batch, signal its outcome to every caller, and appoint the next sender."""
        try:
            await self._send(batch)
        except Exception as error:
            for item in batch:
                item.outcome = error
        finally:
            self._appoint()
            for item in batch:
                if item.outcome is None:
                    item.outcome = OutcomeUnknownError(
                        self._label, "the request was cancelled", "retry"
                    )
                item.signal.set()

    def _appoint(self) -> None:
        with self._mutex:
            batch: list[_Item] = []
            written: set[str] = set()
            concerned: set[str] = set()
            tokens = 0
            for item in self._waiting:
                proposal = item.proposal
                alone = proposal.size > SIZE_MAX
                if batch and (alone or tokens + proposal.tokens > STRIDE):
                    continue
                writes, concerns = proposal.writes, proposal.writes | proposal.compares
                if not (writes.isdisjoint(concerned) and concerns.isdisjoint(written)):
                    continue
                batch.append(item)
                written |= writes
                concerned |= concerns
                tokens += proposal.tokens
                if alone or len(batch) == TOGETHER_MAX:
                    break
            chosen = set(map(id, batch))
            self._waiting = [item for item in self._waiting if id(item) not in chosen]
            self._is_sending = bool(batch)
            if batch:
                leader = max(batch, key=lambda item: item.until_ms)
                leader.leads = batch
        if batch:
            leader.signal.set()

    async def _send(self, batch: list[_Item]) -> None:
        if len(batch) > 1:
            try:
                await self._send_together(batch)
                return
            except (DuplicateKeyError, LeaseGoneError):
                pass  # one of them failed and nothing was executed: send each separately
        for item in batch:
            try:
                item.outcome = await self._send_alone(item.proposal, item.until_ms)
            except (StoreError, LeaseGoneError, DuplicateKeyError) as error:
                item.outcome = error

    async def _send_alone(self, proposal: Proposal, until_ms: int) -> Committed:
        slot = Slot()
        answer = await self._request(proposal.body(slot), until_ms, not proposal.writes)
        return Committed(answer, slot)

    async def _send_together(self, batch: list[_Item]) -> None:
        slots: list[Slot] = []
        tokens = 0
        for index, item in enumerate(batch):
            slots.append(Slot(index, tokens))
            tokens += item.proposal.tokens
        nested = [
            f'{{"request_txn":{item.proposal.body(slot)}}}'
            for item, slot in zip(batch, slots, strict=True)
        ]
        until_ms = max(item.until_ms for item in batch)
        repeatable = not any(item.proposal.writes for item in batch)
        answer = await self._request(txn(nested), until_ms, repeatable)
        for index, item in enumerate(batch):
            item.outcome = Committed(answer.nested(index), slots[index])
