"""The audit log: one JSON object per line, appended and never changed.

It records logins, refusals, revocations, and changes of tokens and rights. A line is written with
one `write` to a descriptor opened for appending, so several servers may share a file.

Anyone who can connect can be refused as often as they like, so refusals are bounded: `Refusals`
writes the first of each sender as lines, and counts the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from lockfast.stores.private_files import open_private

logger = logging.getLogger("lockfast.audit")

INTERVAL_S: Final = 60.0
LINES_PER_SENDER: Final = 10
"""How many refusals of one sender are written per interval; the others are counted."""
LINES_MAX: Final = 1000
"""How many refusals of all senders are written per interval."""
SENDERS_MAX: Final = 1000
"""How many senders are told apart per interval; the refusals of others are counted together."""


class AuditLog:
    """Writes to a file, or to the logger `lockfast.audit` if there is none."""

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._descriptor: int | None = None
        self.reopen()

    def reopen(self) -> None:
        """Open the file again, after log rotation has moved it."""
        if self._path:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            descriptor = open_private(self._path, flags, self._path)
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = descriptor

    def write(self, what: str, **values: Any) -> None:
        # ASCII only, so that newlines and terminal control characters are always escaped.
        line = json.dumps({"at": _now(), "what": what, **values}, ensure_ascii=True, default=str)
        if self._descriptor is None:
            logger.info("%s", line)
            return
        try:
            os.write(self._descriptor, line.encode() + b"\n")
        except OSError as error:
            logger.error("the audit log cannot be written: %s; %s", error, line)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Sender(NamedTuple):
    """Where a refused request came from."""

    address: str
    principal: str = ""
    """"" if the sender was not authenticated."""

    def values(self) -> dict[str, str]:
        return {"from": self.address} | ({"principal": self.principal} if self.principal else {})


OTHERS: Final = Sender("other addresses")


class Refusals:
    """Writes refusals to the audit log, with a bounded number of lines per interval.

    At the end of an interval, one line per sender says how many of its refusals were not written.
    """

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._counts: dict[Sender, int] = {}
        self._written = 0
        self._omitted: dict[Sender, int] = {}
        self._since = ""
        self._timer: asyncio.TimerHandle | None = None

    def write(self, what: str, sender: Sender, **values: Any) -> None:
        if self._timer is None:
            self._since = _now()
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self.summarize)
        if sender not in self._counts and len(self._counts) >= SENDERS_MAX:
            sender = OTHERS
        count = self._counts[sender] = self._counts.get(sender, 0) + 1
        if count > LINES_PER_SENDER or self._written >= LINES_MAX:
            self._omitted[sender] = self._omitted.get(sender, 0) + 1
            return
        self._written += 1
        self._audit.write(what, **values, **sender.values())

    def summarize(self) -> None:
        """Write how many refusals were omitted, and begin a new interval."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sender, count in self._omitted.items():
            values = {"count": count, "since": self._since, **sender.values()}
            self._audit.write("refusals omitted", **values)
        self._counts.clear()
        self._omitted.clear()
        self._written = 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
