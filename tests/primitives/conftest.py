"""Stories about primitives run on each store in each face."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path

import pytest

from tests.primitives.world import World

STORES = ("memory", "sqlite")
FACES = ("threads", "asyncio")

_numbers = itertools.count()


@pytest.fixture(params=list(itertools.product(STORES, FACES)), ids="-".join)
def world(request: pytest.FixtureRequest, quick_path: Path) -> World:
    store, face = request.param
    if store == "memory":
        return World(f"memory://primitives-{next(_numbers)}", face)
    return World(f"sqlite://{quick_path}/locks.db", face)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A story is `async def`, and told by the driver of its face."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    told = given["world"]
    assert isinstance(told, World)
    told.play(pyfuncitem.obj(**given), ())
    return True
