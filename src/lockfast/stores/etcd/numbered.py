"""Claim numbers: what was asked for under them, what was answered, and what is in doubt.

Only one process gives commands for a session, so it knows which of its requests were
answered. Where one was not, it writes the session's key anew before it goes on: whatever is
still under way compares that key, and can no longer be carried out.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from lockfast.core import commands as c
from lockfast.core.commands import Reply
from lockfast.errors import OutcomeUnknownError
from lockfast.stores.etcd.errors import LeaseGoneError
from lockfast.stores.etcd.outcome import Outcome
from lockfast.stores.etcd.reader import Reader
from lockfast.stores.etcd.requests import Kv
from lockfast.stores.etcd.shared import Numbers


class Numbered(Reader):
    """A command that may be of a claim, and may be sent more than once."""

    _in_doubt = False
    """A transaction of ours may have been carried out."""

    @property
    def _n(self) -> int:
        return int(getattr(self.command, "n", 0))

    @property
    def _numbers(self) -> Numbers:
        if isinstance(self.command, c.Enter | c.Leave):
            return self.shared.numbers_of(self._session)
        return Numbers()

    @property
    def _is_sure(self) -> bool:
        """Whether no request to enter the claim can be under way, or matters any more."""
        return self._n in self._numbers.answered or self._n in self._numbers.finished

    def _noted(self, outcome: Outcome) -> Outcome:
        """Note what has become of the command's claim number."""
        command, reply = self.command, outcome.reply
        if isinstance(command, c.Enter) and isinstance(reply, c.Granted | c.Queued):
            self._numbers.enter(command.n)
        elif (isinstance(command, c.Enter) and isinstance(reply, c.Busy)) or (
            isinstance(command, c.Leave) and not isinstance(reply, c.Ended)
        ):
            self._numbers.finish(command.n)
        elif isinstance(reply, c.Ended):
            self.shared.forget(self._session)
            self.shared.forget_claims(self._session)
        return outcome

    def _was_left(self, reply: Reply) -> bool:
        """Whether a leave whose answer was lost has been carried out.

        The claim was there; whoever else takes one away leaves word, and nobody has.
        """
        command = self.command
        return (
            self._in_doubt
            and isinstance(command, c.Leave)
            and command.n in self._numbers.answered
            and reply == c.Done(found=False)
        )

    # ── doubt ────────────────────────────────────────────────────────────────────────

    def broke_off(self, error: BaseException, living: Kv | None = None) -> None:
        """A transaction got no answer: if it may have been carried out, see whether it was.

        That has half of the time that is left, so that whoever asks can ask once more: it
        begins with a read then, and an answer to that leaves no doubt.
        """
        in_doubt = isinstance(error, OutcomeUnknownError)
        may_come = in_doubt or not isinstance(error, Exception)
        if may_come and living is not None and isinstance(self.command, c.Enter):
            self._numbers.doubted[self._n] = living
        if not in_doubt:
            return
        self._in_doubt = True
        self.until_s -= max(0.0, self.until_s - monotonic()) / 2
        self.shared.forget(self._session)
        self._afresh()

    async def _fence(self) -> None:
        """See that nothing is carried out any more that was sent to enter the same claim."""
        if not isinstance(self.command, c.Enter):
            return
        n, keys = self.command.n, self.shared.keys
        living = self._numbers.doubted.get(n)
        if living is not None or self._is_sure:
            self._guesses = False  # it may be there already
        if living is None:
            return
        # If that key has changed meanwhile, nothing that compares it is carried out either.
        compare = keys.unchanged(living.key, living.mod)
        put = keys.put(living.key, living.value, self.shared.lease_of(self._session))
        with suppress(LeaseGoneError):
            await self.gateway.txn({"compare": [compare], "success": [put]}, self.until_s)
        self._numbers.doubted.pop(n, None)
        self.shared.forget(self._session)
