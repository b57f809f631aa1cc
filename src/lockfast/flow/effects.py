"""Signals and callbacks that follow a state change, run after the mutex is released."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockfast.flow.log import logger


def carry_out(effects: Sequence[Callable[[], None]]) -> None:
    """Run all effects, even if some of them raise."""
    for at, effect in enumerate(effects):
        try:
            effect()
        except Exception as error:
            # Starting a callback's thread may fail, for example. Run the others regardless.
            logger.warning("%r failed: %r", effect, error)
        except BaseException:
            carry_out(effects[at + 1 :])
            raise


def without(
    callbacks: tuple[Callable[[], None], ...], callback: Callable[[], None]
) -> tuple[Callable[[], None], ...]:
    """Return `callbacks` without the first occurrence of `callback`."""
    rest = list(callbacks)
    if callback in rest:
        rest.remove(callback)
    return tuple(rest)
