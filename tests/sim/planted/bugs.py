"""Planting a bug: a patch at run time, and the promise by which the search must find it.

A search that finds nothing proves something only if it finds what is there. Each planted bug is a
mistake that lock managers have really made, or that was once made here. A patch that no longer
fits the code raises `MisfitError`, so that it cannot be "found" by the error it causes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

Plant: TypeAlias = Callable[[ExitStack], None]


class Bug(NamedTuple):
    """A mistake that can be planted."""

    name: str
    promise: str
    """The name of the check that finds it (`Problem.check`)."""
    store: str
    """The store whose schedules are searched for it."""
    plant: Plant


class MisfitError(AssertionError):
    """A planted bug does not fit the code it patches any more."""


_BUGS: dict[str, Bug] = {}


def bug(name: str, *, promise: str, store: str = "memory") -> Callable[[Plant], Plant]:
    """Register a function that plants a bug, under a name."""

    def enter(plant: Plant) -> Plant:
        assert name not in _BUGS, f"there are two bugs called {name!r}"
        _BUGS[name] = Bug(name, promise, store, plant)
        return plant

    return enter


def bugs() -> list[Bug]:
    """Return all planted bugs."""
    from tests.sim.planted import (  # noqa: F401
        etcd,
        flow,
        guards,
        postgresql,
        redis,
        sqlite,
        table,
        zookeeper,
    )

    return list(_BUGS.values())


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug until the end of the block."""
    found = next(bug for bug in bugs() if bug.name == name)
    with ExitStack() as stack:
        found.plant(stack)
        yield


def replace(stack: ExitStack, owner: Any, name: str, wrong: object) -> None:
    """Replace an attribute with `wrong`; a function must take the same arguments."""
    right = inspect.getattr_static(owner, name, None)
    if right is None:
        raise MisfitError(f"{owner.__name__} has no {name!r}")
    if callable(right) and callable(wrong):
        expected, found = (list(inspect.signature(f).parameters) for f in (right, wrong))
        if expected != found:
            raise MisfitError(f"{owner.__name__}.{name} takes {expected}, the bug takes {found}")
        if inspect.iscoroutinefunction(right) != inspect.iscoroutinefunction(wrong):
            raise MisfitError(f"only one of {owner.__name__}.{name} and the bug is a coroutine")
    stack.enter_context(mock.patch.object(owner, name, wrong))
