"""Fixtures for tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.crew import Crew, crew_in


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    yield from crew_in(tmp_path)
