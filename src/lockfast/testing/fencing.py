"""Assertions about resources that check tokens."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from lockfast.errors import StaleTokenError


def assert_fenced(
    write: Callable[[int], object], *, refusal: type[Exception] = StaleTokenError
) -> None:
    """Assert that `write(token)` refuses the token of a holder that was overtaken.

    Calls `write` with the token of a successor, which must pass, and then with the token of
    its predecessor, which must raise `refusal`.
    """
    older, newer = _tokens()
    write(newer)
    try:
        write(older)
    except refusal:
        return
    raise AssertionError(_message(older, newer, refusal))


async def assert_fenced_async(
    write: Callable[[int], Awaitable[object]], *, refusal: type[Exception] = StaleTokenError
) -> None:
    """Do the same as `assert_fenced` for an async `write`."""
    older, newer = _tokens()
    await write(newer)
    try:
        await write(older)
    except refusal:
        return
    raise AssertionError(_message(older, newer, refusal))


def _tokens() -> tuple[int, int]:
    """Return tokens as a store would grant them now, in increasing order."""
    token = time.time_ns() // 1000
    return token, token + 1


def _message(older: int, newer: int, refusal: type[Exception]) -> str:
    return (
        f"not fenced: a write with token {older} passed after one with token {newer}; "
        f"it should have raised {refusal.__name__}"
    )
