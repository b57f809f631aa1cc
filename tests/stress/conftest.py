"""Fixtures for stress tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "memory"])
def url(request: pytest.FixtureRequest, quick_path: Path) -> str:
    """A store of each embedded kind."""
    if request.param == "memory":
        return f"memory://{quick_path.name}"
    return f"sqlite://{quick_path}/locks.db"
