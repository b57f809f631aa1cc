from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """The command line on a new lock file; its processes end with the test."""
    cli = Cli(tmp_path)
    yield cli
    cli.clean_up()
