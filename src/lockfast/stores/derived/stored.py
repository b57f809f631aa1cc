"""The stored form of claims and tokens: JSON, checked when it is read.

A token that a write allocates depends on the write's own revision or zxid, which is known only
afterwards. Until then it is *relative*: RELATIVE plus its position among the tokens of the write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from lockfast.core.commands import Place
from lockfast.core.modes import MODES_OF_KIND
from lockfast.core.rows import Claim

RELATIVE: Final = 1 << 61
TOKEN_MAX: Final = (1 << 53) - 1

encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class UnreadableError(ValueError):
    """A stored value was not written by this version."""


# Every stored number is an integer; `1e999` would be infinite, which `int` refuses differently.
_decoder: Final = json.JSONDecoder(parse_float=int, parse_constant=int)


def decode(text: str | bytes) -> Any:
    try:
        return _decoder.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        raise UnreadableError(f"{text[:60]!r} is not JSON") from None


def packed_entry(claim: Claim) -> list[Any]:
    """Return what a claim stores of its entry; `claim_from` reads it."""
    places = [list(place) for place in claim.places]
    return [claim.actor, claim.priority, claim.entered_ms, places]


def packed_grant(claim: Claim) -> list[Any]:
    """Return what a claim stores of its grant, except for the token; `claim_from` reads it."""
    return [
        claim.granted_ms, claim.until_ms, claim.max_hold_ms, claim.lock_delay_ms, claim.block,
        claim.value, claim.passed, claim.step, claim.wants, claim.reason, claim.window_ms,
    ]  # fmt: skip


def claim_from(
    session: str, n: int, state: str, rank: str, entry: list[Any], token: int, grant: list[Any]
) -> Claim:
    """Return a stored claim.

    Raises TypeError or ValueError if it is not readable; the caller knows where it is stored.
    """
    actor, priority, entered_ms, places = entry
    (
        granted_ms, until_ms, max_hold_ms, lock_delay_ms, block, value, passed, step, wants, reason,
        window_ms,
    ) = grant  # fmt: skip
    if not 0 <= token <= TOKEN_MAX:
        raise UnreadableError(f"token {token} is out of range")
    return Claim(
        session, n, tuple(_place(place) for place in places), state, rank, str(actor),
        int(priority), int(entered_ms), token, int(granted_ms), int(until_ms), int(max_hold_ms),
        int(lock_delay_ms), int(block), None if value is None else str(value), int(passed),
        int(step), str(wants), str(reason), "", int(window_ms),
    )  # fmt: skip


def _place(values: Any) -> Place:
    kind, name, mode, weight, limit = values
    if mode not in MODES_OF_KIND.get(kind, ()):
        raise UnreadableError(f"{kind!r} cannot be held {mode!r}")
    return Place(kind, str(name), mode, int(weight), int(limit))


def resolved(value: Any, token_at: Callable[[int], int]) -> Any:
    """Replace relative tokens, also inside tuples, by those that a write has allocated."""
    if isinstance(value, int):
        return token_at(value - RELATIVE) if value >= RELATIVE else value
    if isinstance(value, tuple):
        items = [resolved(item, token_at) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
