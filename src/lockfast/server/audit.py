"""The audit log: one JSON object per line, appended and never changed.

It records logins, refusals, revocations, and changes of tokens and rights. A line is written with
one `write` to a descriptor opened for appending, so several servers may share a file.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any

from lockfast.stores.private_files import open_private

logger = logging.getLogger("lockfast.audit")


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
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        # ASCII only, so that newlines and terminal control characters are always escaped.
        line = json.dumps({"at": at, "what": what, **values}, ensure_ascii=True, default=str)
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
