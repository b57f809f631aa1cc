"""Values on the command line: durations, priorities, signals, labels."""

from __future__ import annotations

import signal
from argparse import ArgumentTypeError

from lockfast.api import settings
from lockfast.errors import LockfastError


def seconds(text: str) -> float:
    """Parse a duration: `90`, `1.5s`, `250ms`, `5m`, `1h30m`, `2d`."""
    try:
        return settings.parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def ttl(text: str) -> float:
    value = seconds(text)
    try:
        settings.ttl_to_ms(value)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return value


def priority(text: str) -> int:
    try:
        return settings.check_priority(int(text))
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a whole number from -{settings.PRIORITY_MAX} "
            f"to {settings.PRIORITY_MAX}"
        ) from None


def position(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ArgumentTypeError(f"{text!r} is not a position in the event log")
    return int(text)


def signal_number(text: str) -> signal.Signals:
    name = text.upper().removeprefix("SIG")
    try:
        return signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name}"]
    except (KeyError, ValueError):
        raise ArgumentTypeError(
            f"{text!r} is not a signal; write a name such as USR1 or a number"
        ) from None


def owner(text: str) -> str:
    return _label(text, "owner", settings.OWNER_BYTES_MAX)


def reason(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("must not be empty")
    return _label(text, "reason", settings.METADATA_BYTES_MAX)


def _label(text: str, what: str, bytes_max: int) -> str:
    try:
        return settings.check_text(text, what, bytes_max)
    except (ValueError, LockfastError) as error:
        raise ArgumentTypeError(str(error)) from None
