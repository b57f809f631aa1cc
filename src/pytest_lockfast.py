"""The pytest plugin of Lockfast: fixtures for a store that a test controls.

A module of its own, so that pytest loads nothing of `lockfast` until a test asks for a fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import lockfast.aio
    from lockfast.testing import ControlledStore


@pytest.fixture
def lockfast_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlledStore]:
    """An empty store for this test, with `clock.advance()`, `down()`, `slow()` and `lose()`.

    Within the test `LOCKFAST_URL` names it, so `lockfast.lock()` and `connect()` use it.
    """
    from lockfast.testing import ControlledStore

    with ControlledStore() as store:
        monkeypatch.setenv("LOCKFAST_URL", store.url)
        # Clients of lockfast.lock() that were connected to another store before.
        for module in ("lockfast.api.blocking.client", "lockfast.api.aio.client"):
            if module in sys.modules:
                monkeypatch.setattr(f"{module}._default.client", None)
        yield store


@pytest.fixture
def lockfast_client(lockfast_store: ControlledStore) -> lockfast.Client:
    """A client of `lockfast_store`."""
    return lockfast_store.connect()


@pytest.fixture
def lockfast_aio_client(lockfast_store: ControlledStore) -> lockfast.aio.Client:
    """A client of `lockfast_store` for asyncio."""
    return lockfast_store.connect_aio()
