"""Call the cluster: authenticate, raise typed errors, retry where that is safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lockfast.errors import (
    OutcomeUnknownError,
    StoreMisconfiguredError,
    StoreUnavailableError,
)
from lockfast.stores.derived.stored import encode
from lockfast.stores.etcd.batches import Batches, Committed, Proposal
from lockfast.stores.etcd.context import Context
from lockfast.stores.etcd.errors import TokenRefusedError, error_of
from lockfast.stores.etcd.requests import AUTHENTICATE, TXN, Answer, txn
from lockfast.stores.etcd.transport import Json, Transport
from lockfast.stores.passwords import plain

REPEATS: Final = 6


class Gateway:
    """The cluster as seen by one wire."""

    def __init__(self, context: Context, transport: Transport, *, together: bool = False) -> None:
        self.context = context
        self.keys = context.keys
        self.network = context.network
        self.transport = transport
        self.together = together
        """Whether it serves the callers of a client, who may share requests."""
        self.start()

    def start(self) -> None:
        """Begin without requests in flight, for a new wire or in a forked child."""
        # Reads are batched separately from writes: a read must see the state at one revision.
        self._reads, self._writes = (
            Batches(
                self.context.label, self.network, self.transport.signal, self._request,
                self.together,
            )
            for _ in range(2)
        )  # fmt: skip

    def until_ms(self, timeout_ms: int) -> int:
        return self.network.now_ms() + timeout_ms

    # ── calls ────────────────────────────────────────────────────────────────────────

    async def call(self, path: str, body: str, until_ms: int, *, repeatable: bool = True) -> Json:
        """Send a request until a member replies.

        Raises StoreUnavailableError if the request was certainly not executed, OutcomeUnknownError
        if it may have been and is not `repeatable`.
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

    async def _ask(self, path: str, body: str, until_ms: int, *, is_retry: bool = False) -> Json:
        try:
            token = await self.token(until_ms)
            reply = await self.transport.call(path, body, self._left_ms(until_ms), token)
            return self._checked(reply)
        except TokenRefusedError as error:
            self.context.token = ""
            if is_retry:
                raise self._refused(error) from None
            return await self._ask(path, body, until_ms, is_retry=True)

    async def token(self, until_ms: int) -> str:
        """Return the value of the Authorization header; "" without a user."""
        context = self.context
        if context.username and not context.token:
            password = plain(context.password, context.label)
            credentials = encode({"name": context.username, "password": password})
            try:
                reply = self._checked(
                    await self.transport.call(AUTHENTICATE, credentials, self._left_ms(until_ms))
                )
            except OutcomeUnknownError as error:
                raise StoreUnavailableError(error.store, error.what, error.advice) from error
            context.token = str(reply.get("token", ""))
        return context.token

    async def follow(self, request: Json, take: Callable[[Json], bool], until_ms: int) -> None:
        """Open a watch and pass each message to `take`, until it returns True."""
        try:
            token = await self.token(until_ms)
            await self.transport.follow(request, take, self._left_ms(until_ms), token)
        except TokenRefusedError as error:
            self.context.token = ""
            raise self._refused(error) from None

    def _refused(self, error: TokenRefusedError) -> StoreUnavailableError:
        what = f"refused a new authentication token ({error})"
        return StoreUnavailableError(self.context.label, what)

    def _checked(self, reply: Json) -> Json:
        error = error_of(self.context.label, reply)
        if error is not None:
            raise error
        result = reply.get("result", reply)
        if not isinstance(result, dict):
            raise self.keys.malformed(ValueError("no result"))
        self.context.learn(result)
        return result

    def _left_ms(self, until_ms: int) -> int:
        return max(1, until_ms - self.network.now_ms())

    # ── transactions ─────────────────────────────────────────────────────────────────

    async def read(self, operations: list[str], until_ms: int) -> Answer:
        """Execute read-only operations at one revision."""
        body = txn(operations)
        proposal = Proposal(lambda slot: body, len(operations))
        return (await self._reads.send(proposal, until_ms)).answer

    async def commit(
        self,
        writes: list[str],
        compares: Sequence[str],
        until_ms: int,
        reads: Sequence[str] = (),
    ) -> Answer:
        """Execute one transaction that allocates no token, in its own request."""
        body = txn(writes, compares, reads)
        return Answer(self.keys, await self.call(TXN, body, until_ms, repeatable=False))

    async def txn(self, proposal: Proposal, until_ms: int) -> Committed:
        """Execute one transaction, possibly in the same request as those of other callers."""
        return await self._writes.send(proposal, until_ms)

    async def _request(self, body: str, until_ms: int, repeatable: bool) -> Answer:
        reply = await self.call(TXN, body, until_ms, repeatable=repeatable)
        return Answer(self.keys, reply)
