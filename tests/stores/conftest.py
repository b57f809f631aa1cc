"""Fixtures for tests of stores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.crew import Crew, crew_in


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    yield from crew_in(tmp_path)


@pytest.fixture
def open_crew() -> Iterator[Crew]:
    """Processes in a directory that every user can reach."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield from crew_in(Path(made))
