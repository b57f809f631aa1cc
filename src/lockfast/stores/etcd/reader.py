"""What a step knows: what is believed at first, what was read since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockfast.core import commands as c
from lockfast.core import rows as r
from lockfast.core.commands import Command
from lockfast.core.table import READS
from lockfast.stores.etcd.errors import CompactedError
from lockfast.stores.etcd.gateway import Gateway
from lockfast.stores.etcd.knowledge import Knowledge, Want
from lockfast.stores.etcd.outcome import Instant
from lockfast.stores.etcd.plan import due_range, first_due_ms
from lockfast.stores.etcd.requests import OPERATIONS_MAX, Json, revision_of
from lockfast.stores.etcd.rows import (
    EPOCH_KEY,
    alone_prefix,
    end_of,
    living_key,
    record_key,
    resource_alone,
    stored_key,
)
from lockfast.stores.etcd.shared import Shared

_FINDS_CLAIMS: Final = frozenset(
    (
        c.Look, c.Convert, c.Proclaim, c.Adopt, c.Revoke, c.Close, c.Expel, c.RevokeSession,
        c.Claims,
    )
)  # fmt: skip
"""Commands that do not say where their claims are."""


class Reader:
    """The knowledge of one command on its way."""

    def __init__(
        self, gateway: Gateway, shared: Shared, command: Command, until_s: float,
        instant: Instant | None = None, *, guesses: bool = True,
    ) -> None:  # fmt: skip
        self.gateway = gateway
        self.shared = shared
        self.command = command
        self.until_s = until_s
        self.instant = instant
        self.known = Knowledge()
        self._session = str(getattr(command, "session", ""))
        self._guesses = guesses
        self._guessed = self._guessing = False
        """What is known is, or at some time was, only believed."""
        self.now = instant or Instant.now()
        """When this attempt is; it stays so while more is read for it."""

    def _afresh(self) -> None:
        """Know nothing, and begin at the present instant."""
        self.known, self._guessing = Knowledge(), False
        self.now = self.instant or Instant.now()

    def _guess(self) -> None:
        """Begin with what is believed, if nothing ends by itself before."""
        if self._guesses and self.now.now_ms < self.shared.due_ms:
            guess = self.shared.guess(self.command)
            if guess is not None:
                self.known, self._guessing, self._guessed = guess, True, True

    def _first_wants(self) -> list[Want]:
        """What the command is sure to need, to be read at once."""
        command, session = self.command, self._session
        keys = [EPOCH_KEY] if type(command) not in READS else []
        if session:
            keys += [record_key(session), living_key(session)]
        n = getattr(command, "n", 0)
        if n:
            keys.append(r.claim_key(session, n))
        wants = [*map(Want, keys)]
        resources = [stored_key(r.resource_key(*p[:2])) for p in getattr(command, "places", ())]
        if type(command) in _FINDS_CLAIMS:
            prefix = alone_prefix(session)
            wants.append(Want(prefix, end_of(prefix)))
            held = self.shared.alone[session].held.get(n) if session in self.shared.alone else None
            if held is not None:
                resources.append(resource_alone(held.word))
        return [*wants, *map(Want.resource, dict.fromkeys(resources))]

    async def _read_more(self, wants: Sequence[Want]) -> None:
        """Read what a step found missing, with all that is sure to be needed."""
        if self._guessing:
            # What is believed and what is read need not go together.
            self._afresh()
        first = [] if self.known.revision else self._first_wants()
        await self._read([*first, *wants])
        self.shared.keep(self.known, self._session)
        if first and isinstance(self.command, c.Enter) and not self._guessed:
            self._guess()

    async def _read(self, wants: Sequence[Want]) -> None:
        """Read some more, as of the revision of what was read before."""
        at = self.known.revision
        wants = list(dict.fromkeys(wants))[:OPERATIONS_MAX]
        reads = self._ranges(wants, at)
        if not at:
            reads = [*reads[: OPERATIONS_MAX - 1], due_range(self.shared.keys)]
            wants = wants[: OPERATIONS_MAX - 1]
        try:
            answer = await self.gateway.txn({"success": reads}, self.until_s, repeatable=True)
        except CompactedError:
            self._afresh()
            return
        responses = answer["responses"]
        if not at:
            self.known.revision = revision_of(answer)
            self.shared.due_ms = first_due_ms(self.shared.keys.found(responses.pop()).kvs)
        for want, response in zip(wants, responses, strict=True):
            self.known.learn(want, self.shared.keys.found(response))

    def _ranges(self, wants: Sequence[Want], revision: int = 0) -> list[Json]:
        keys = self.shared.keys
        return [
            keys.range(w.start, w.stop, w.limit, reverse=w.reverse, revision=revision)
            for w in wants
        ]

    def _learn(self, revision: int, wants: Sequence[Want], responses: Sequence[Json]) -> None:
        """Take over what is so, where it is not as it was believed to be."""
        leaves = self._guessing and isinstance(self.command, c.Leave)
        self._afresh()
        self.known.revision = revision
        if leaves:
            # The lines were read; what is believed of the session is compared again.
            for kv in self.shared.believed(self._session):
                self.known.add(kv)
        for want, response in zip(wants, responses, strict=True):
            self.known.learn(want, self.shared.keys.found(response))
        self.shared.keep(self.known, self._session)
