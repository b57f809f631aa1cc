"""The blocking API as if it were awaited, so that each test is written once for both.

A method is awaited here if its twin in the asyncio API returns an awaitable: the wrapper is derived
from the twin, so a method missing from either API fails the tests.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

import lockfast
import lockfast.aio
from lockfast.api.aio import client as aio_client
from lockfast.api.aio import groups as aio_groups
from lockfast.api.aio import lease as aio_lease
from lockfast.api.aio import recipes as aio_recipes
from lockfast.runtimes.threads import run

_TWINS = {
    name: value
    for module in (aio_client, aio_groups, aio_lease, aio_recipes)
    for name, value in vars(module).items()
    if inspect.isclass(value)
}


class Awaited:
    """A blocking object whose calls look awaited, and block instead of suspending."""

    def __init__(self, it: Any) -> None:
        self.it = it
        self._twin = _TWINS[type(it).__name__]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.it, name)
        if not callable(value) or type(value).__name__ in _TWINS:
            return _wrap(value)
        if _is_awaited(getattr(self._twin, name)):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                return _wrap(value(*map(_unwrap, args), **kwargs))

            return awaited

        @functools.wraps(value)
        def called(*args: Any, **kwargs: Any) -> Any:
            return _wrap(value(*map(_unwrap, args), **kwargs))

        return called

    async def __aenter__(self) -> Any:
        assert hasattr(self._twin, "__aenter__")
        return _wrap(self.it.__enter__())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.it.__exit__(kind, error, trace)

    def __aiter__(self) -> Awaited:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self.it)
        except StopIteration:
            raise StopAsyncIteration from None

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Decorate an `async def`."""

        @functools.wraps(function)
        def blocks(*args: Any, **kwargs: Any) -> Any:
            return run(function(*args, **kwargs))

        decorated = self.it(blocks)

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return decorated(*args, **kwargs)

        return awaited


def connect(face: str, url: str, **settings: Any) -> Any:
    """Return a client of this API, with awaitable methods."""
    if face == "asyncio":
        return lockfast.aio.connect(url, **settings)
    return Awaited(lockfast.connect(url, **settings))


def _is_awaited(function: Any) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    returned = getattr(function, "__annotations__", {}).get("return", "")
    return str(returned).startswith("Acquiring[")


def _wrap(value: Any) -> Any:
    return Awaited(value) if type(value).__module__.startswith("lockfast.api.blocking") else value


def _unwrap(value: Any) -> Any:
    return value.it if isinstance(value, Awaited) else value
