"""Checks of the values in a request that commands and requests to a node share."""

from __future__ import annotations

import re
from typing import Final

from lockfast.core.modes import MODES_OF_KIND, ONCE
from lockfast.core.names import check_name, check_stored_name, has_controls
from lockfast.server.problems import INVALID, Problem

SESSION: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
REASON_MAX: Final = 1024
BOUNDS_MAX_MS: Final = 366 * 24 * 3600 * 1000
"""The limit of every duration in a command; a year is as good as forever."""
KIND_MAX: Final = 64
PAGE_MAX: Final = 1000


def check_session(session: str) -> None:
    if not SESSION.fullmatch(session):
        raise invalid("a session id has 1 to 128 characters of A-Z a-z 0-9 . _ : -")


def check_lock(kind: str, name: str) -> None:
    """Raise InvalidNameError for a name that no client of this kind of lock would send."""
    if kind == ONCE:
        check_stored_name(name)
    else:
        check_name(name)


def check_kind(kind: str) -> None:
    # An unknown kind is harmless: the store has no resources of it.
    if len(kind) > KIND_MAX or has_controls(kind):
        raise invalid(f"kind is one of {', '.join(MODES_OF_KIND)}")


def check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid(f"{name} has to be from {least} to {most}")


def invalid(detail: str) -> Problem:
    return Problem(422, INVALID, detail)
