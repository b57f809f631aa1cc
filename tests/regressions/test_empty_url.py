"""An empty URL is a mistake, for example in a settings file, and not a wish for the default.

It led to the lock file of this user, so that each machine had locks of its own.
"""

from __future__ import annotations

import pytest

import lockfast
import lockfast.aio
from lockfast.cli import exit_codes, main


@pytest.mark.parametrize("connect", [lockfast.connect, lockfast.aio.connect])
def test_connect(connect: object) -> None:
    assert callable(connect)
    with pytest.raises(lockfast.StoreMisconfiguredError, match="is empty"):
        connect("")


@pytest.mark.parametrize(
    "argv",
    [
        ["ls", "--url", ""],
        ["ls", "--url-file", ""],
        ["reset", "staging", "--yes", "--url", ""],
        ["doctor", ""],
    ],
)
def test_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == exit_codes.USAGE
    assert "lockfast: " in capsys.readouterr().err
