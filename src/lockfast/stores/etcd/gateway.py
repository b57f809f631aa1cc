"""Calls to the cluster: the user's token, errors made typed, requests that travel together.

While one request of a wire is under way, the transactions asked for meanwhile wait, and leave
together in the next request, nested: one Raft entry and one fsync for all of them. Each has its
own comparisons and its own outcome. They share a revision, so each is given its own `Slot` of it.

etcd evaluates all comparisons of a request before it carries out any operation, so transactions
that travel together do not see each other: two of them could take the same free lock. Therefore
no transaction travels with one that writes what it compares or writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lockfast.errors import (
    OutcomeUnknownError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.ports import Signal
from lockfast.stores.etcd.address import Address
from lockfast.stores.etcd.errors import (
    DuplicateKeyError,
    LeaseGoneError,
    TokenRefusedError,
    error_of,
)
from lockfast.stores.etcd.layout import STRIDE, encode
from lockfast.stores.etcd.requests import AUTHENTICATE, TXN, Answer, Keys, txn
from lockfast.stores.etcd.transport import Json, Network, Transport
from lockfast.stores.passwords import plain

TOGETHER_MAX: Final = 48
SIZE_MAX: Final = 64
"""Of a transaction that may travel with others: etcd counts nested operations together."""
REPEATS: Final = 6


class Cluster:
    """What all connections of a store know of the cluster. Any thread may use it."""

    def __init__(self, address: Address, network: Network) -> None:
        self.label = address.label
        self.username = address.username
        self.password = address.password
        self.network = network
        self.keys = Keys(address.root, address.label)
        self.token = ""
        """Of the user, for every request; "" until it has been asked for."""
        self.revision = 0
        """The highest revision heard of."""
        self._id: object = None

    def learn(self, reply: Json) -> None:
        """Take over the header of a reply; raises if another cluster answers."""
        header = reply.get("header")
        if not isinstance(header, dict):
            return
        found = header.get("cluster_id")
        if found and found != self._id:
            if self._id is not None:
                raise StoreMisconfiguredError(
                    self.label,
                    f"members of two clusters answer ({self._id} and {found})",
                    "name the members of one cluster only",
                )
            self._id = found
        self.revision = max(self.revision, self.keys.number(header, "revision"))


class Slot(NamedTuple):
    """Which part of a request a transaction has to itself."""

    order: int = 0
    tokens: int = 0
    """How many tokens the transactions before it in the request give."""


class Proposal(NamedTuple):
    """A transaction to be sent."""

    body: Callable[[Slot], str]
    size: int
    """The number of comparisons or operations, whichever is larger."""
    writes: frozenset[str] = frozenset()
    """Scopes (`layout.scope_of`) of the keys that it may put or delete."""
    tokens: int = 0
    compares: frozenset[str] = frozenset()
    """Scopes of what it compares."""


class Committed(NamedTuple):
    """What became of a proposal."""

    answer: Answer
    slot: Slot

    def token(self, epoch: int, position: int = 0) -> int:
        """The token that it gave, or one of them by its position."""
        return epoch + self.slot.tokens + position + STRIDE * self.answer.revision


@dataclass(eq=False)
class _Item:
    proposal: Proposal
    until_ms: int
    signal: Signal
    leads: list[_Item] | None = None
    """The batch this item's caller is to send."""
    outcome: Committed | BaseException | None = field(default=None)


class Gateway:
    """One wire's way to the cluster."""

    def __init__(self, cluster: Cluster, transport: Transport, *, together: bool = False) -> None:
        self.cluster = cluster
        self.keys = cluster.keys
        self.network = cluster.network
        self.transport = transport
        self._together = together
        self._mutex = cluster.network.mutex()
        self._waiting: list[_Item] = []
        self._is_sending = False

    def until_ms(self, timeout_ms: int) -> int:
        return self.network.now_ms() + timeout_ms

    # ── calls ────────────────────────────────────────────────────────────────────────

    async def call(self, path: str, body: str, until_ms: int, *, repeatable: bool = True) -> Json:
        """Ask until a member answers.

        Raises StoreUnavailableError if the request surely was not carried out,
        OutcomeUnknownError if it may have been and is not `repeatable`.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._ask(path, body, until_ms)
            except StoreMisconfiguredError:
                raise
            except StoreUnavailableError:
                if attempt >= REPEATS or self._left_ms(until_ms) <= 1:
                    raise
                self.transport.avoid_member()
                await self.transport.pause(min(10 * attempt, self._left_ms(until_ms)))
            except OutcomeUnknownError as error:
                if not repeatable:
                    raise
                if attempt >= REPEATS or self._left_ms(until_ms) <= 1:
                    raise StoreUnavailableError(error.store, error.what, error.advice) from error

    async def _ask(self, path: str, body: str, until_ms: int) -> Json:
        try:
            return await self._once(path, body, until_ms)
        except TokenRefusedError:
            self.cluster.token = ""
        try:
            return await self._once(path, body, until_ms)
        except TokenRefusedError as error:
            raise StoreUnavailableError(
                self.cluster.label, f"refused a new authentication token ({error})"
            ) from None

    async def _once(self, path: str, body: str, until_ms: int) -> Json:
        token = await self.token(until_ms)
        reply = await self.transport.call(path, body, self._left_ms(until_ms), token)
        return self._checked(reply)

    async def token(self, until_ms: int) -> str:
        """The value of the Authorization header; "" without users."""
        cluster = self.cluster
        if cluster.username and not cluster.token:
            password = plain(cluster.password, cluster.label)
            credentials = encode({"name": cluster.username, "password": password})
            try:
                reply = self._checked(
                    await self.transport.call(AUTHENTICATE, credentials, self._left_ms(until_ms))
                )
            except OutcomeUnknownError as error:
                raise StoreUnavailableError(error.store, error.what, error.advice) from error
            cluster.token = str(reply.get("token", ""))
        return cluster.token

    def _checked(self, reply: Json) -> Json:
        error = error_of(self.cluster.label, reply)
        if error is not None:
            raise error
        result = reply.get("result", reply)
        if not isinstance(result, dict):
            raise self.keys.malformed(ValueError("no result"))
        self.cluster.learn(result)
        return result

    def _left_ms(self, until_ms: int) -> int:
        return max(1, until_ms - self.network.now_ms())

    # ── transactions ─────────────────────────────────────────────────────────────────

    async def read(self, operations: list[str], until_ms: int) -> Answer:
        """Carry out operations that only read, at one revision."""
        reply = await self.call(TXN, txn(operations), until_ms)
        return Answer(self.keys, reply)

    async def commit(
        self,
        writes: list[str],
        compares: Sequence[str],
        until_ms: int,
        reads: Sequence[str] = (),
    ) -> Answer:
        """Carry out one transaction that gives no token, in a request of its own."""
        body = txn(writes, compares, reads)
        return Answer(self.keys, await self.call(TXN, body, until_ms, repeatable=False))

    async def txn(self, proposal: Proposal, until_ms: int) -> Committed:
        """Carry out one transaction, perhaps in one request with those of other callers."""
        if not self._together:
            return await self._send_alone(proposal, until_ms)
        item = _Item(proposal, until_ms, self.transport.signal())
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
            raise OutcomeUnknownError(self.cluster.label, "did not answer in time")
        return outcome

    async def _wait(self, item: _Item) -> None:
        try:
            if await item.signal.wait(self._left_ms(item.until_ms)):
                return
            with self._mutex:
                if item in self._waiting:
                    self._waiting.remove(item)
                    item.outcome = StoreUnavailableError(
                        self.cluster.label, "the requests before this one took too long"
                    )
        except BaseException:
            with self._mutex:
                if item in self._waiting:
                    self._waiting.remove(item)
                batch, item.leads = item.leads, None
            if batch is not None:  # we were to send: let another do it
                with self._mutex:
                    self._waiting[:0] = [other for other in batch if other is not item]
                self._appoint()
            raise

    async def _lead(self, batch: list[_Item]) -> None:
        """Send a batch, tell everybody its outcome, and appoint who sends the next one."""
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
                        self.cluster.label, "the request was cancelled", "retry"
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
                pass  # of one of them: nothing was done, and each is sent for itself
        for item in batch:
            try:
                item.outcome = await self._send_alone(item.proposal, item.until_ms)
            except (StoreError, LeaseGoneError, DuplicateKeyError) as error:
                item.outcome = error

    async def _send_alone(self, proposal: Proposal, until_ms: int) -> Committed:
        slot = Slot()
        reply = await self.call(TXN, proposal.body(slot), until_ms, repeatable=not proposal.writes)
        return Committed(Answer(self.keys, reply), slot)

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
        reply = await self.call(TXN, txn(nested), until_ms, repeatable=repeatable)
        answer = Answer(self.keys, reply)
        for index, item in enumerate(batch):
            item.outcome = Committed(answer.nested(index), slots[index])
