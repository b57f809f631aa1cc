"""Log lines for every state change, and a JSON formatter. Uses the logger `lockfast`.

Lost leases, outages and deadlocks are always logged. `enable()` adds the rest: acquires,
waits, releases and conversions at level DEBUG, sessions and acquires that gave up at INFO.
"""

from __future__ import annotations

import json
import logging
import time

from lockfast.api.observing import Subscription, observe
from lockfast.events import Event
from lockfast.flow.log import logger
from lockfast.flow.log_lines import ALWAYS

__all__ = ["JsonFormatter", "enable"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def enable() -> Subscription:
    """Log all state changes of all clients and guards of this process.

    Set levels and handlers with `logging` as usual. Close the subscription to stop.
    """
    return observe(_log)


def _log(event: Event) -> None:
    if not isinstance(event, ALWAYS):
        logger.event(event)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                line.setdefault(key, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))
