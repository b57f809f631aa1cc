"""What follows from a change: signals and callbacks, done once no mutex is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockfast.flow.log import logger


def carry_out(effects: Sequence[Callable[[], None]]) -> None:
    """Do what follows from a change: all of it, whatever becomes of one part."""
    for at, effect in enumerate(effects):
        try:
            effect()
        except Exception as error:
            # There may be no thread to be had for a callback; the others are told all the same.
            logger.warning("%r failed: %r", effect, error)
        except BaseException:
            carry_out(effects[at + 1 :])
            raise


def without(
    callbacks: tuple[Callable[[], None], ...], callback: Callable[[], None]
) -> tuple[Callable[[], None], ...]:
    """All but one; those of a lease are few."""
    rest = list(callbacks)
    if callback in rest:
        rest.remove(callback)
    return tuple(rest)
