"""Record the commands and replies of a client as lines of a history.

The format is that of `sim/history.py`; an operation is one claim. Times are microseconds of this
machine's clock since boot.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from lockfast.core import commands as c
from lockfast.core.codec import encode_place
from lockfast.errors import StoreMisconfiguredError
from lockfast.runtimes.platform import now_us
from lockfast.stores.private_files import open_private

VARIABLE: Final = "LOCKFAST_HISTORY"
_OPS_BITS: Final = 20
"""A process draws a new random base after 2 ** _OPS_BITS operation numbers."""

logger = logging.getLogger("lockfast")


class HistoryFile:
    """Appends lines to a file that other processes append to as well."""

    def __init__(self, path: str, label: str) -> None:
        try:
            # It contains owner labels and lock names: for this user only, like the lock database.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            self._descriptor = open_private(path, flags, f"{VARIABLE}={path}")
        except OSError as error:
            raise StoreMisconfiguredError(
                label, f"{VARIABLE}={path!r} cannot be written: {error.strerror}"
            ) from error
        self._path = path
        self._broken = False

    def write(self, entry: dict[str, Any]) -> None:
        if self._broken:
            return
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        try:
            if os.write(self._descriptor, line) == len(line):
                return
            reason = "a line was cut short"
        except OSError as error:
            reason = str(error)
        # Locking continues; the file up to here can still be checked, or is rejected.
        self._broken = True
        logger.warning("the history in %s ends here: %s", self._path, reason)

    def close(self) -> None:
        if not self._broken:
            self._broken = True
            os.close(self._descriptor)


@dataclass
class _Claim:
    """A claim that was requested and not released yet."""

    op: int
    by: str
    max_hold_ms: int
    token: int = 0
    """0 until the claim is known to hold."""
    conversions: dict[str, int] = field(default_factory=dict)
    """Pending conversions: the operation for each requested mode."""


class HistoryRecorder:
    """Turns commands and replies into entries. Callers and keepers write concurrently."""

    def __init__(self, file: HistoryFile) -> None:
        self._file = file
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._own_mutex = threading.RLock()
        self._claims: dict[tuple[str, int], _Claim] = {}
        self._releases: dict[tuple[str, int], int] = {}
        self._ttl_us: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._opened: dict[str, int] = {}
        """When each session that is not known to be open was first requested."""
        self._ops = int.from_bytes(os.urandom(4), "big") << _OPS_BITS

    @property
    def _mutex(self) -> AbstractContextManager[Any]:
        if self._process != os.getpid():
            # A forked child holds nothing, and a thread that it lacks may hold the mutex.
            self._begin()
        return self._own_mutex

    def close(self) -> None:
        with self._mutex:
            self._file.close()

    def _next_op(self) -> int:
        self._ops += 1
        if not self._ops % (1 << _OPS_BITS):
            self._ops = int.from_bytes(os.urandom(4), "big") << _OPS_BITS
        return self._ops

    def _ask(self, by: str, what: str, **about: object) -> int:
        op = self._next_op()
        self._file.write({"at": now_us(), "op": op, "by": by, "ask": what, **about})
        return op

    def _got(self, op: int, what: str, **about: object) -> None:
        self._file.write({"at": now_us(), "op": op, "got": what, **about})

    # ── what is sent ─────────────────────────────────────────────────────────────────

    def sends(self, command: c.Command) -> None:
        """Record that a command is about to be sent, possibly again."""
        if isinstance(command, c.Contend):
            command = command.enter
        with self._mutex:
            if isinstance(command, c.Open):
                self._opens(command)
            elif isinstance(command, c.Enter):
                self._enters(command)
            elif isinstance(command, c.Leave):
                self._leaves(command)
            elif isinstance(command, c.Convert):
                self._converts(command)
            elif isinstance(command, c.Close):
                self._ends(command.session, "closed")
            elif isinstance(command, c.Expel) and command.session in self._ttl_us:
                # A client expels its own session when no keep-alive succeeded in time.
                self._ends(command.session, "expired")

    def _opens(self, command: c.Open) -> None:
        self._ttl_us[command.session] = command.ttl_ms * 1000
        self._owners[command.session] = command.owner
        self._opened.setdefault(command.session, now_us())

    def _enters(self, command: c.Enter) -> None:
        if command.open is not None:
            self._opens(command.open)
        if command[:2] in self._claims:
            return
        by = command.actor or command.session
        op = self._ask(
            by,
            "acquire",
            owner=self._owners.get(command.session, ""),
            places=[encode_place(place) for place in command.places],
            wait=command.queue,
            head_start=command.head_start_ms,
            closes=bool(command.lock_delay_ms or command.window_ms),
        )
        self._claims[command[:2]] = _Claim(op, by, command.max_hold_ms)

    def _leaves(self, command: c.Leave) -> None:
        of = command[:2]
        claim = self._claims.pop(of, None)
        if claim is None:
            return
        if not claim.token:
            self._got(claim.op, "timeout")
            return
        self._got(claim.op, "over", why="released")
        self._releases[of] = self._ask(claim.by, "release", of=claim.op)

    def _converts(self, command: c.Convert) -> None:
        claim = self._claims.get(command[:2])
        if claim is not None and command.mode not in claim.conversions:
            claim.conversions[command.mode] = self._ask(
                claim.by, "convert", of=claim.op, mode=command.mode, wait=command.queue
            )

    def _ends(self, session: str, why: str) -> None:
        """Record that the client no longer relies on a session."""
        if self._ttl_us.pop(session, None) is not None:
            self._file.write({"at": now_us(), "ends": session, "why": why})
        self._owners.pop(session, None)
        self._opened.pop(session, None)
        for of in [of for of in self._claims if of[0] == session]:
            claim = self._claims.pop(of)
            if claim.token:
                self._got(claim.op, "over", why=why)
            else:
                self._got(claim.op, "unknown")

    def failed(self, command: c.Command, sent_us: int) -> None:
        """Record that a command got no reply, or an error."""
        if isinstance(command, c.Renew):
            with self._mutex:
                self._file.write({"at": now_us(), "fails": command.session, "sent": sent_us})

    # ── what is heard ────────────────────────────────────────────────────────────────

    def heard(self, command: c.Command, reply: c.Reply, sent_us: int) -> None:
        """Record the reply to a command that was sent at `sent_us`."""
        if isinstance(command, c.Contend):
            command = command.enter
        with self._mutex:
            if isinstance(reply, c.Ended) and (session := getattr(command, "session", "")):
                self._ends(session, "lost")
            if isinstance(command, c.Enter):
                self._entered(command, reply, sent_us)
            elif isinstance(command, c.Look):
                self._stands(command[:2], reply, sent_us)
            elif isinstance(command, c.Renew) and isinstance(reply, c.Renewed):
                self._lives(command.session, sent_us)
                for n, look in reply.looks:
                    self._stands((command.session, n), look, sent_us)
            elif isinstance(command, c.Claims) and isinstance(reply, c.ClaimsReply):
                self._lists(command.session, reply.claims, sent_us)
            elif isinstance(command, c.Convert):
                self._converted(command, reply)
            elif isinstance(command, c.Leave):
                self._left(command, reply)
            else:
                self._by_others(command, reply, sent_us)

    def hears(self, wake: c.Wake) -> None:
        """Record a grant that arrived as a trusted wake."""
        if wake.what == c.WAKE_GRANTED:
            with self._mutex:
                claim = self._claims.get((wake.session, wake.n))
                if claim is not None and not claim.token and not claim.max_hold_ms:
                    self._holds((wake.session, wake.n), claim, c.Granted(wake.token), now_us())

    def _entered(self, command: c.Enter, reply: c.Reply, sent_us: int) -> None:
        claim = self._claims.get(command[:2])
        opened_us = self._opened.pop(command.session, None)
        if opened_us is not None:
            self._lives(command.session, opened_us)
        if claim is None:
            return
        if isinstance(reply, c.Queued) and not claim.token:
            self._got(claim.op, "queued")
        elif isinstance(reply, c.Busy | c.Refused):
            del self._claims[command[:2]]
            self._got(claim.op, "busy" if isinstance(reply, c.Busy) else "refused")
        else:
            self._stands(command[:2], reply, sent_us)

    def _stands(self, of: tuple[str, int], reply: c.Reply, sent_us: int) -> None:
        claim = self._claims.get(of)
        if claim is None:
            return
        if isinstance(reply, c.Granted):
            if not claim.token:
                self._holds(of, claim, reply, sent_us)
            elif reply.mode in claim.conversions and reply.token >= claim.token:
                claim.token = reply.token
                self._got(claim.conversions.pop(reply.mode), "granted", token=reply.token)
        elif isinstance(reply, c.Gone):
            del self._claims[of]
            self._got(claim.op, "over" if claim.token else "unknown", why="lost")

    def _holds(self, of: tuple[str, int], claim: _Claim, reply: c.Granted, sent_us: int) -> None:
        claim.token = reply.token
        about: dict[str, int] = {}
        if claim.max_hold_ms:
            about["until"] = sent_us + (claim.max_hold_ms - reply.for_ms) * 1000
        self._got(claim.op, "granted", token=reply.token, session=of[0], n=of[1], **about)

    def _lives(self, session: str, sent_us: int) -> None:
        """Record a session's deadline, counted from before the request was sent."""
        ttl_us = self._ttl_us.get(session)
        if ttl_us is not None:
            about = {"lives": session, "until": sent_us + ttl_us, "sent": sent_us}
            self._file.write({"at": now_us(), **about})

    def _lists(self, session: str, claims: Sequence[c.ClaimView], sent_us: int) -> None:
        for view in claims:
            if view.state == c.HOLDING:
                mode = view.places[0].mode if len(view.places) == 1 else ""
                granted = c.Granted(view.token, view.for_ms, mode)
                self._stands((session, view.n), granted, sent_us)

    def _converted(self, command: c.Convert, reply: c.Reply) -> None:
        claim = self._claims.get(command[:2])
        if claim is None:
            return
        if isinstance(reply, c.Granted) and reply.mode == command.mode:
            self._stands(command[:2], reply, now_us())
        elif isinstance(reply, c.Refused | c.Busy) and command.mode in claim.conversions:
            outcome = "deadlock" if isinstance(reply, c.Refused) else "timeout"
            self._got(claim.conversions.pop(command.mode), outcome)
        elif isinstance(reply, c.Gone):
            self._stands(command[:2], reply, now_us())

    def _left(self, command: c.Leave, reply: c.Reply) -> None:
        op = self._releases.pop(command[:2], None)
        if op is not None:
            done = isinstance(reply, c.Done) and reply.found
            self._got(op, "done" if done else "lost")

    def _by_others(self, command: c.Command, reply: c.Reply, sent_us: int) -> None:
        """Record what this client did to claims of others, and to limits."""
        if not isinstance(reply, c.Done) or not reply.found:
            return
        if isinstance(command, c.Revoke):
            self._file.write({"at": sent_us, "revoke": command.session, "n": command.n})
        elif isinstance(command, c.RevokeSession) or (
            # The holder's process is dead, so it relies on nothing. (A silent one has its
            # deadline.)
            isinstance(command, c.Expel) and command.renewals is None
        ):
            self._file.write({"at": sent_us, "revoke": command.session, "n": 0})
        elif isinstance(command, c.Resize):
            self._file.write({"at": sent_us, "resize": command.name, "limit": command.limit})
