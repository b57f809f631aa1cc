"""Validation and defaults of arguments: durations, owners, priorities and store URLs."""

from __future__ import annotations

import math
import os
import re
import sys
from datetime import timedelta
from enum import Enum
from typing import Final

from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.names import has_controls
from lockfast.errors import LimitError, StoreMisconfiguredError

Seconds = float | timedelta


class Default(Enum):
    """Marks an argument that was not given, where None has another meaning."""

    TIMEOUT = "the timeout of the recipe"


DEFAULT: Final = Default.TIMEOUT
Timeout = Seconds | None | Default
"""How long to wait: seconds, None for no limit, or by default the timeout of the recipe."""

TTL_DEFAULT: Final = 30.0
TTL_MS_MIN: Final = 100
TTL_MS_MAX: Final = 24 * 3600 * 1000
SPAN_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
"""Ten years: longer than any useful duration, and far below the integer range of any store."""
PRIORITY_MAX: Final = 1000
OWNER_BYTES_MAX: Final = 200
METADATA_BYTES_MAX: Final = 4096
SESSION_BYTES_MAX: Final = 100
URL_LENGTH_MAX: Final = 65536


def to_ms(value: object, what: str) -> int:
    """Convert a duration to whole milliseconds. Raise TypeError or ValueError if invalid."""
    ms = _span_ms(value, what)
    if ms > SPAN_MS_MAX:
        raise ValueError(f"{what}={value!r}: must be at most ten years")
    return ms


def _span_ms(value: object, what: str) -> int:
    if isinstance(value, timedelta):
        seconds: float = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise TypeError(
            f"{what} must be a number of seconds or a timedelta, not {type(value).__name__}"
        )
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what}={value!r}: must be finite and not negative")
    # Compare before multiplying: a huge int does not fit into a float.
    return SPAN_MS_MAX + 1 if seconds > SPAN_MS_MAX else math.ceil(seconds * 1000)


_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Parse `90`, `1.5s`, `250ms`, `5m`, `1h30m` or `2d`; raise ValueError for anything else."""
    number = r"\d+(?:\.\d*)?|\.\d+"
    try:
        if re.fullmatch(number, text, re.ASCII):
            value = float(text)
        elif re.fullmatch(rf"(?:(?:{number})(?:ms|s|m|h|d))+", text, re.ASCII):
            parts = re.findall(rf"({number})(ms|s|m|h|d)", text)
            value = sum(float(count) * _UNITS_S[unit] for count, unit in parts)
        else:
            raise ValueError
        to_ms(value, "duration")
    except ValueError:
        raise ValueError(
            f"{text!r} is not a duration; write seconds, or for example 250ms, 90s, 5m, 1h30m"
        ) from None
    return value


def timeout_to_ms(timeout: object) -> int | None:
    """Convert a timeout; None waits without limit, 0 does not wait."""
    return None if timeout is None else min(_span_ms(timeout, "timeout"), SPAN_MS_MAX)


def positional_error(method: str, given: tuple[object, ...], *keywords: str) -> TypeError:
    """Return the error for positional arguments; it says what to write instead."""
    instead = " or ".join(f"{method}({keyword}={given[0]!r})" for keyword in keywords)
    return TypeError(f"{method}() takes no positional arguments: write {instead}")


def ttl_to_ms(ttl: object) -> int:
    ms = to_ms(ttl, "ttl")
    if not TTL_MS_MIN <= ms <= TTL_MS_MAX:
        raise ValueError(f"ttl={ttl!r}: must be from 0.1 seconds to 24 hours")
    return ms


def max_hold_to_ms(max_hold: object) -> int:
    """Convert `max_hold`; 0 means that there is no bound."""
    if max_hold is None:
        return 0
    ms = to_ms(max_hold, "max_hold")
    if ms < TTL_MS_MIN:
        raise ValueError(f"max_hold={max_hold!r}: must be at least 0.1 seconds, or None")
    return ms


def check_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise TypeError(f"priority must be an int, not {type(priority).__name__}")
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority={priority}: must be from -{PRIORITY_MAX} to {PRIORITY_MAX}")
    return priority


def check_text(text: object, what: str, bytes_max: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ValueError(
            f"{what} contains a lone surrogate, which cannot be encoded as UTF-8"
        ) from None
    if size > bytes_max:
        raise LimitError(f"the size of {what} in bytes", size, bytes_max)
    if has_controls(text):
        raise ValueError(f"{what} must not contain control characters")
    return str.__str__(text)


def check_reason(reason: object) -> str:
    """Return the reason of a revocation, which the holder and the log show."""
    text = check_text(reason, "reason", METADATA_BYTES_MAX)
    if not text.strip():
        raise ValueError(f"reason={text!r} must not be empty")
    return text


def check_kind(kind: object) -> str:
    if kind not in MODES_OF_KIND:
        raise ValueError(f"kind={kind!r}: must be one of {', '.join(MODES_OF_KIND)}")
    return str(kind)


def check_position(after: object) -> int | None:
    """Check the position in the log after which to read; None means the current end."""
    if after is None:
        return None
    if not isinstance(after, int) or isinstance(after, bool):
        raise TypeError(
            f"after must be an int, the position of an event, not {type(after).__name__}"
        )
    if after < 0:
        raise ValueError(f"after={after}: must be 0 (the start of the log) or greater")
    return after


def default_owner() -> str:
    """Return "host:pid:program", which identifies a holder to an operator."""
    import socket

    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    label = f"{socket.gethostname()}:{os.getpid()}:{program}"
    label = "".join(c if c.isprintable() else "?" for c in label)
    return label.encode()[:OWNER_BYTES_MAX].decode(errors="ignore")


def default_url() -> str:
    """Return LOCKFAST_URL, or the URL in the file LOCKFAST_URL_FILE, or this user's lock file."""
    from urllib.parse import quote

    url = os.environ.get("LOCKFAST_URL")
    if url:
        return url
    file = os.environ.get("LOCKFAST_URL_FILE")
    if file:
        return read_url_file(file, "LOCKFAST_URL_FILE")
    state = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return f"sqlite://{quote(os.path.join(state, 'lockfast', 'locks.db'))}"


def read_url_file(path: str, source: str) -> str:
    """Return the store URL in the first line of a file. Raises StoreMisconfiguredError.

    `source` is the variable or option that named the file, for error messages.
    """
    try:
        with open(path, encoding="utf-8") as file:
            url = file.readline(URL_LENGTH_MAX).strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise StoreMisconfiguredError(
            f"{source}={path}", f"the file cannot be read ({why})", "write a store URL to it"
        ) from error
    if not url:
        raise StoreMisconfiguredError(
            f"{source}={path}", "the file's first line is empty", "write a store URL to it"
        )
    return url


def default_ttl() -> float:
    text = os.environ.get("LOCKFAST_TTL")
    if not text:
        return TTL_DEFAULT
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(f"LOCKFAST_TTL: {error}") from None
