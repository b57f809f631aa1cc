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
from lockfast.core.table import Limits
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


def _small(monkeypatch: pytest.MonkeyPatch, name: str) -> str:
    """Return the URL of a store that accepts less text than a client may send."""
    limits = Limits(text_max=100)
    monkeypatch.setattr("lockfast.core.table.Limits", lambda: limits)
    return f"memory://{name}"


def test_a_watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It took the refused session for opened and lost, and tried the next one for ever."""
    with lockfast.connect(_small(monkeypatch, str(tmp_path)), metadata="x" * 101) as client:
        for _ in range(2):
            with pytest.raises(LimitError, match="metadata"):
                next(client.watch())


def test_a_watch_asyncio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def main() -> None:
        url = _small(monkeypatch, str(tmp_path))
        async with aio.connect(url, metadata="x" * 101) as client:
            for _ in range(2):
                with pytest.raises(LimitError, match="metadata"):
                    await anext(client.watch())

    asyncio.run(main())
