"""Tests of primitives run on each store with each API."""

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
    """Run an `async def` test with the driver of its API."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    told = given["world"]
    assert isinstance(told, World)
    told.play(pyfuncitem.obj(**given), ())
    return True
