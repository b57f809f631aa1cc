"""A session that the store refuses is not taken for one that it has opened and then lost.

Each acquire after the first `LimitError` logged that the session had ended, "re-entering the
queue", before it raised the same error again.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

import lockfast
from lockfast import aio
from lockfast.errors import LimitError


def _url(directory: Path) -> str:
    files = ",".join(str(directory / f"{name}.db") for name in "abc")
    return f"quorum+sqlite://{files}?silence=1"


def test_blocking(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with lockfast.connect(_url(tmp_path), ttl=5) as client:
        for _ in range(3):
            with pytest.raises(LimitError, match="silence="):
                client.lock("a").acquire(timeout=1)
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_asyncio(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with aio.connect(_url(tmp_path), ttl=5) as client:
            for _ in range(3):
                with pytest.raises(LimitError, match="silence="):
                    await client.lock("a").acquire(timeout=1)

    asyncio.run(main())
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == []
